//! The startup parameter `options`: `-c name=value` and `--name=value`. Pure.

/// Reads the settings in an `options` text; a backslash keeps the next character as it is.
/// Names come back in lower case with `-` as `_`, as PostgreSQL reads them.
///
/// # Errors
/// The switch that is not understood.
pub fn parse(options: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings = Vec::new();
    let mut words = words(options).into_iter();
    while let Some(word) = words.next() {
        let setting = match (word.strip_prefix("-c"), word.strip_prefix("--")) {
            (Some(""), _) => words.next().ok_or_else(|| word.clone())?,
            (Some(rest), _) | (None, Some(rest)) => rest.to_owned(),
            (None, None) => return Err(word),
        };
        let (name, value) = setting.split_once('=').ok_or_else(|| setting.clone())?;
        settings.push((
            name.to_ascii_lowercase().replace('-', "_"),
            value.to_owned(),
        ));
    }
    Ok(settings)
}

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => word.get_or_insert_default().extend(chars.next()),
            c if c.is_ascii_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_and_escapes_are_read() {
        let parsed = parse(r"-c geqo=off  -cpgdog.min_lsn=0/1 --search-path=a\ b,c").unwrap();
        let expected = [
            ("geqo", "off"),
            ("pgdog.min_lsn", "0/1"),
            ("search_path", "a b,c"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parsed, expected);
        assert_eq!(parse("").unwrap(), []);
    }

    #[test]
    fn other_switches_are_refused() {
        for bad in ["-c", "-x", "geqo=off", "-c geqo", "--geqo"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
