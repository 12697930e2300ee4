//! Where a session looks for unqualified names. Pure.

/// PostgreSQL's default, which nothing but a server's configuration changes.
const DEFAULT: &str = "\"$user\", public";

/// Schemas, and whose `"$user"` is.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchPath {
    /// As they were set.
    set: Vec<String>,
    login: String,
    authorization: Option<String>,
    role: Option<String>,
    /// With the user's name in it.
    schemas: Vec<String>,
}

impl SearchPath {
    /// Of somebody who has set nothing yet.
    pub fn of(login: &str) -> Self {
        let mut path = Self {
            set: parts(DEFAULT),
            login: login.to_owned(),
            authorization: None,
            role: None,
            schemas: Vec::new(),
        };
        path.expand();
        path
    }

    /// Whether names are looked for elsewhere when this parameter changes.
    pub fn follows(parameter: &str) -> bool {
        matches!(parameter, "search_path" | "role" | "session_authorization")
    }

    /// In their order.
    pub fn schemas(&self) -> &[String] {
        &self.schemas
    }

    /// The role that was set.
    pub fn role(&self) -> Option<&str> {
        self.role.as_deref()
    }

    /// One of these parameters was set; None: it is as in `default` again.
    pub fn assign(&mut self, parameter: &str, value: Option<&str>, default: &Self) {
        match parameter {
            "search_path" => self.set = value.map_or_else(|| default.set.clone(), parts),
            "role" => {
                self.role = match value {
                    Some(value) => (value != "none").then(|| value.to_owned()),
                    None => default.role.clone(),
                }
            }
            _ => {
                self.authorization = match value {
                    Some(value) => Some(value.to_owned()),
                    None => default.authorization.clone(),
                };
                self.role = None;
            }
        }
        self.expand();
    }

    fn expand(&mut self) {
        let user = self.role.as_ref().or(self.authorization.as_ref());
        let user = user.unwrap_or(&self.login);
        let schemas = self.set.iter().map(|part| match part.as_str() {
            "$user" => user.clone(),
            _ => part.clone(),
        });
        self.schemas = schemas.collect();
    }
}

/// Schemas in a `search_path` value.
fn parts(value: &str) -> Vec<String> {
    let parts = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let inner = part
                .strip_prefix('"')
                .and_then(|part| part.strip_suffix('"'));
            match inner {
                Some(quoted) => quoted.replace("\"\"", "\""),
                None => part.to_ascii_lowercase(),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_with_its_quotes() {
        let default = SearchPath::of("anna");
        assert_eq!(default.schemas(), ["anna", "public"]);
        let mut path = default.clone();
        path.assign(
            "search_path",
            Some("\"$user\", Public,\"My Schema\""),
            &default,
        );
        assert_eq!(path.schemas(), ["anna", "public", "My Schema"]);
        path.assign("search_path", Some(""), &default);
        assert!(path.schemas().is_empty());
        path.assign("search_path", None, &default);
        assert_eq!(path, default);
    }

    #[test]
    fn the_user_in_it_is_the_current_one() {
        let default = SearchPath::of("anna");
        let mut path = default.clone();
        let mut then = |parameter, value| {
            path.assign(parameter, value, &default);
            path.schemas()[0].clone()
        };
        assert_eq!(then("role", Some("tenant")), "tenant");
        assert_eq!(then("search_path", Some("$user")), "tenant");
        assert_eq!(then("session_authorization", Some("bert")), "bert");
        assert_eq!(then("role", Some("tenant")), "tenant");
        assert_eq!(then("role", Some("none")), "bert");
        assert_eq!(then("session_authorization", None), "anna");
    }
}
