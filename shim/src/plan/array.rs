//! Arrays in text form, split as PostgreSQL splits them.

/// Splits a one-dimensional array in text form; `None` members are NULL.
pub(crate) fn split_array(text: &str) -> Option<Vec<Option<String>>> {
    let inner = text.trim_matches(is_space);
    let inner = inner.strip_prefix('{')?.strip_suffix('}')?;
    let mut members = Vec::new();
    let mut chars = inner.chars().peekable();
    if inner.trim_matches(is_space).is_empty() {
        return Some(members);
    }
    loop {
        let mut member = Member::default();
        let mut more = false;
        while chars.next_if(|c| is_space(*c)).is_some() {}
        while let Some(c) = chars.next() {
            match c {
                ',' => {
                    more = true;
                    break;
                }
                '{' | '}' => return None,
                space if member.quoted && is_space(space) => {}
                // A quoted member has nothing beside it.
                _ if member.quoted => return None,
                '"' if !member.text.is_empty() => return None,
                '"' => {
                    member.quoted = true;
                    take_quoted(&mut chars, &mut member.text)?;
                }
                '\\' => {
                    member.text.push(chars.next()?);
                    member.kept = member.text.len();
                }
                other => member.text.push(other),
            }
        }
        members.push(member.value()?);
        if !more {
            return Some(members);
        }
    }
}

/// White space to PostgreSQL, between the members of an array.
fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\x0b' | '\x0c' | '\r')
}

/// A member of an array while it is read.
#[derive(Debug, Default)]
struct Member {
    text: String,
    quoted: bool,
    /// Up to here it stays as it is: the last escaped character ends here.
    kept: usize,
}

impl Member {
    /// `Some(None)`: it is NULL; none: there is none.
    fn value(mut self) -> Option<Option<String>> {
        if self.quoted {
            return Some(Some(self.text));
        }
        let (kept, rest) = self.text.split_at(self.kept);
        let length = kept.len() + rest.trim_end_matches(is_space).len();
        self.text.truncate(length);
        match self.text.as_str() {
            "" => None,
            text if self.kept == 0 && text.eq_ignore_ascii_case("null") => Some(None),
            _ => Some(Some(self.text)),
        }
    }
}

fn take_quoted(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    member: &mut String,
) -> Option<()> {
    loop {
        match chars.next()? {
            '"' => return Some(()),
            '\\' => member.push(chars.next()?),
            other => member.push(other),
        }
    }
}
