//! The options of `COPY ... FROM STDIN` that say where a row ends and which field is which.

use pg_query::NodeEnum;
use pg_query::protobuf::{CopyStmt, DefElem, Node};

use super::setting::truth;
use super::value::string;

/// How the rows of a `COPY ... FROM STDIN` are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyIn {
    /// Text, CSV or binary.
    pub format: CopyFormat,
    /// Between two fields; of a text or CSV row.
    pub delimiter: u8,
    /// What stands for NULL.
    pub null: Vec<u8>,
    /// The first line is none of the rows.
    pub header: bool,
    /// What stands for the default of its column, if anything does.
    pub default: Option<Vec<u8>>,
    /// CSV: what encloses a field.
    pub quote: u8,
    /// CSV: what makes a quote stand for itself.
    pub escape: u8,
    /// CSV: columns of which NULL may be quoted.
    pub force_null: Columns,
    /// CSV: columns of which nothing is NULL.
    pub force_not_null: Columns,
    /// The encoding that the statement names.
    pub encoding: Option<String>,
    /// What makes its rows impossible to tell apart here.
    pub refused: Option<String>,
}

/// The formats of COPY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// `text`
    Text,
    /// `csv`
    Csv,
    /// `binary`
    Binary,
}

/// Columns that an option names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Columns {
    /// These.
    Some(Vec<String>),
    /// `*`
    All,
}

impl Columns {
    /// Whether a column is one of them.
    pub fn has(&self, column: &str) -> bool {
        match self {
            Columns::Some(names) => names.iter().any(|name| name == column),
            Columns::All => true,
        }
    }
}

impl CopyFormat {
    fn read(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Self::Text),
            "csv" => Some(Self::Csv),
            "binary" => Some(Self::Binary),
            _ => None,
        }
    }
}

/// Reads the options. Those that PostgreSQL refuses are for it to refuse.
pub(super) fn copy_in(copy: &CopyStmt) -> CopyIn {
    let options: Vec<&DefElem> = copy.options.iter().filter_map(element).collect();
    let format = options.iter().find(|option| option.defname == "format");
    let format = format.map_or(Some(CopyFormat::Text), |option| {
        text(option).as_deref().and_then(CopyFormat::read)
    });
    let csv = format == Some(CopyFormat::Csv);
    let mut read = CopyIn {
        format: format.unwrap_or(CopyFormat::Text),
        delimiter: if csv { b',' } else { b'\t' },
        null: if csv { Vec::new() } else { b"\\N".to_vec() },
        header: false,
        default: None,
        quote: b'"',
        escape: b'"',
        force_null: Columns::Some(Vec::new()),
        force_not_null: Columns::Some(Vec::new()),
        encoding: None,
        refused: format.is_none().then(|| "option \"format\"".to_owned()),
    };
    let mut escape = None;
    for option in options {
        let name = option.defname.as_str();
        let known = match name {
            "format" | "freeze" | "log_verbosity" => Some(()),
            "delimiter" => byte(option).map(|byte| read.delimiter = byte),
            "quote" => byte(option).map(|byte| read.quote = byte),
            "escape" => byte(option).map(|byte| escape = Some(byte)),
            "null" => text(option).map(|text| read.null = text.into_bytes()),
            "default" => text(option).map(|text| read.default = Some(text.into_bytes())),
            "encoding" => text(option).map(|text| read.encoding = Some(text)),
            "header" => header(option).map(|header| read.header = header),
            "force_null" => columns(option).map(|columns| read.force_null = columns),
            "force_not_null" => columns(option).map(|columns| read.force_not_null = columns),
            "on_error" => text(option).filter(|text| text == "stop").map(drop),
            _ => None,
        };
        if known.is_none() {
            read.refused.get_or_insert(format!("option \"{name}\""));
        }
    }
    read.escape = escape.unwrap_or(read.quote);
    read
}

fn element(node: &Node) -> Option<&DefElem> {
    match &node.node {
        Some(NodeEnum::DefElem(element)) => Some(element),
        _ => None,
    }
}

fn text(option: &DefElem) -> Option<String> {
    match option.arg.as_ref()?.node.as_ref()? {
        NodeEnum::String(text) => Some(text.sval.clone()),
        NodeEnum::Integer(number) => Some(number.ival.to_string()),
        NodeEnum::Float(number) => Some(number.fval.clone()),
        NodeEnum::Boolean(value) => Some(value.boolval.to_string()),
        _ => None,
    }
}

fn byte(option: &DefElem) -> Option<u8> {
    match text(option)?.as_bytes() {
        [byte] => Some(*byte),
        _ => None,
    }
}

/// Whether there is a header; one that must match is for the servers to compare.
fn header(option: &DefElem) -> Option<bool> {
    if option.arg.is_none() {
        return Some(true);
    }
    let text = text(option)?;
    // A number says how many lines: PostgreSQL 18 knows none but 0 and 1.
    truth(&text).or_else(|| text.eq_ignore_ascii_case("match").then_some(true))
}

fn columns(option: &DefElem) -> Option<Columns> {
    match option.arg.as_ref()?.node.as_ref()? {
        NodeEnum::AStar(_) => Some(Columns::All),
        NodeEnum::List(list) => {
            let names = list
                .items
                .iter()
                .map(|item| string(item).map(str::to_owned));
            names.collect::<Option<_>>().map(Columns::Some)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::parse;

    fn read(sql: &str) -> CopyIn {
        let plan = parse(sql).unwrap();
        *plan.statements[0].copy_in.clone().unwrap()
    }

    #[test]
    fn defaults_are_those_of_the_format() {
        let text = read("COPY t FROM STDIN");
        assert_eq!((text.format, text.delimiter), (CopyFormat::Text, b'\t'));
        assert_eq!((text.null.as_slice(), text.header), (&b"\\N"[..], false));
        let csv = read("COPY t FROM STDIN (FORMAT csv, QUOTE '''')");
        assert_eq!((csv.format, csv.delimiter), (CopyFormat::Csv, b','));
        assert_eq!((csv.quote, csv.escape, csv.null.len()), (b'\'', b'\'', 0));
        assert_eq!(read("COPY BINARY t FROM STDIN").format, CopyFormat::Binary);
    }

    #[test]
    fn both_ways_to_write_options_are_read() {
        let old = "COPY t FROM STDIN WITH DELIMITER ';' NULL 'none' CSV HEADER QUOTE '\"' \
                   ESCAPE '\\' FORCE NOT NULL a, b ENCODING 'latin1'";
        let new = "COPY t FROM STDIN (DELIMITER ';', NULL 'none', FORMAT csv, HEADER on, \
                   QUOTE '\"', ESCAPE '\\', FORCE_NOT_NULL (a, b), ENCODING 'latin1')";
        assert_eq!(read(old), read(new));
        let read = read(new);
        assert!(read.header && read.force_not_null.has("b") && !read.force_null.has("b"));
        assert_eq!((read.delimiter, read.escape), (b';', b'\\'));
        assert_eq!(read.encoding.as_deref(), Some("latin1"));
        assert_eq!(read.refused, None);
    }

    #[test]
    fn a_header_may_be_asked_for_in_many_ways() {
        for (option, header) in [
            ("HEADER", true),
            ("HEADER match", true),
            ("HEADER 1", true),
            ("HEADER true", true),
            ("HEADER 0", false),
            ("HEADER off", false),
        ] {
            let sql = format!("COPY t FROM STDIN ({option})");
            assert_eq!(read(&sql).header, header, "{option}");
        }
    }

    #[test]
    fn what_is_not_known_is_said() {
        for option in ["ON_ERROR ignore", "HEADER 3", "WHATEVER 1", "FORMAT xml"] {
            let read = read(&format!("COPY t FROM STDIN ({option})"));
            assert!(read.refused.is_some(), "{option}");
        }
        assert_eq!(read("COPY t FROM STDIN (ON_ERROR stop)").refused, None);
        assert!(read("COPY t FROM STDIN (FORCE_NULL *)").force_null.has("x"));
    }
}
