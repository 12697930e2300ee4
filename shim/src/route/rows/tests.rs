//! Rows of all formats, cut anywhere.

use bytes::BufMut as _;
use proptest::prelude::*;

use super::*;
use crate::plan::parse;

const DIALECT: Dialect = Dialect {
    utf8: true,
    csv_marker: true,
};

fn copy(options: &str) -> CopyIn {
    let plan = parse(&format!("COPY t FROM STDIN {options}")).unwrap();
    *plan.statements[0].copy_in.clone().unwrap()
}

fn splitter(options: &str, place: usize, data_type: DataType) -> Splitter {
    let copy = copy(options);
    let keyed = Keyed {
        table: "t".to_owned(),
        column: "k".to_owned(),
        place,
        data_type,
        max_length: None,
    };
    Splitter::new(&copy, keyed, DIALECT)
}

/// Rows with their keys; "*" for what goes everywhere. An error is its code and where it is.
fn split(splitter: &mut Splitter, pieces: &[&[u8]]) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut found = Vec::new();
    for (nth, piece) in pieces.iter().enumerate() {
        splitter.push(piece);
        let chunk = splitter.take(nth + 1 == pieces.len()).map_err(told)?;
        for row in chunk.rows {
            let key = row.key.map_or("*".to_owned(), |key| key.to_string());
            found.push((key, chunk.bytes[row.span].to_vec()));
        }
    }
    Ok(found)
}

fn told(fault: Fault) -> String {
    let Fault::Node(error) = fault else {
        return fault.sqlstate().to_owned();
    };
    let place = error.more.first().map_or("", |(_, text)| text.as_str());
    format!("{} {place}", error.code)
}

fn keys(options: &str, place: usize, data: &str) -> Result<Vec<String>, String> {
    let mut splitter = splitter(options, place, DataType::Varchar);
    let rows = split(&mut splitter, &[data.as_bytes()])?;
    Ok(rows.into_iter().map(|(key, _)| key).collect())
}

#[track_caller]
fn has_keys(options: &str, data: &str, expected: &[&str]) {
    let found = keys(options, 1, data).unwrap_or_else(|error| panic!("{data:?}: {error}"));
    assert_eq!(found, expected, "{data:?}");
}

#[track_caller]
fn fails(options: &str, data: &str, expected: &str) {
    assert_eq!(keys(options, 1, data), Err(expected.to_owned()), "{data:?}");
}

#[test]
fn keys_of_text_are_read_as_postgresql_reads_them() {
    has_keys("", "1\ta\tx\n2\tb\ty\n", &["a", "b"]);
    has_keys("", "1\ta\r\n2\tb\r\n", &["a", "b"]);
    has_keys("", "1\ta\r2\tb", &["a", "b"]);
    has_keys("", "1\\\t2\ta\\tb\n", &["a\tb"]);
    has_keys("", "1\\\n2\ta\\\nb\n", &["a\nb"]);
    has_keys("", "1\t\\x41\\101\\x4g\\q\\\\\n", &["AA\u{4}gq\\"]);
    has_keys("", "1\t\\b\\f\\n\\r\\v\\8\n", &["\u{8}\u{c}\n\r\u{b}8"]);
    has_keys("", "1\ta\\\\\t\n", &["a\\"]);
    has_keys("(DELIMITER '|')", "1\t|a\tb|\n", &["a\tb"]);
    has_keys("(NULL 'none')", "1\t\\N\n1\tnon\n", &["N", "non"]);
    has_keys("(HEADER)", "k\tv\n1\ta\n", &["*", "a"]);
    has_keys("", "1\té\n", &["é"]);
}

#[test]
fn keys_of_csv_are_read_as_postgresql_reads_them() {
    let csv = "(FORMAT csv)";
    has_keys(csv, "1,a,x\n2,b,y\n", &["a", "b"]);
    has_keys(csv, "\"1,\n\",\"a,\"\"b\"\n2,x\"y\"z\n", &["a,\"b", "xyz"]);
    has_keys(csv, "1,\"\"\n2, \n", &["", " "]);
    has_keys(csv, "1,\"a\nb\"\r\n2,c\r\n", &["a\nb", "c"]);
    has_keys(csv, "1,\\N\n\\.x,b\n", &["\\N", "b"]);
    has_keys("(FORMAT csv, HEADER)", "\"k\n1\",v\n1,a\n", &["*", "a"]);
    has_keys(
        "(FORMAT csv, ESCAPE '\\')",
        "1,\"a\\\"\\\\b\\c\"\n",
        &["a\"\\b\\c"],
    );
    has_keys(
        "(FORMAT csv, QUOTE '''', DELIMITER ';')",
        "1;'a;b'\n",
        &["a;b"],
    );
    has_keys("(FORMAT csv, FORCE_NOT_NULL (k))", "1,\n", &[""]);
    has_keys("(FORMAT csv, NULL 'x')", "1,\"x\"\n1,\n", &["x", ""]);
}

#[test]
fn a_row_without_a_key_is_named() {
    let null = "23502 COPY t, line 3, column k";
    fails("", "1\ta\n2\tb\n3\t\\N\n", null);
    fails("(NULL 'none')", "1\ta\n2\tb\n3\tnone\n", null);
    fails("(FORMAT csv, HEADER)", "k,v\n2,b\n3,\n", null);
    fails("(FORMAT csv, NULL 'x')", "1,a\n2,b\n3,x\n", null);
    fails("(FORMAT csv, FORCE_NULL (k))", "\"\n\",a\n2,\"\"\n", null);
    fails("", "1\ta\n2\n", "22P04 COPY t, line 2, column k");
    fails("(DEFAULT 'd')", "1\td\n", "22P04 COPY t, line 1, column k");
}

#[test]
fn what_no_single_server_could_see_is_refused_here() {
    for data in [
        "1\ta\n2\tb\r\n",
        "1\ta\r\n2\tb\n",
        "1\ta\r2\tb\n",
        "1\ta\n2\t\\.\n",
    ] {
        fails("", data, "22P04 COPY t, line 2");
    }
    fails("(FORMAT csv)", "1,a\n2,b\r\n", "22P04 COPY t, line 2");
}

#[test]
fn what_comes_behind_the_end_does_not_count() {
    has_keys("", "1\ta\n\\.\nwhatever\n", &["a"]);
    has_keys("", "1\ta\r\n\\.\r\nwhatever\n", &["a"]);
    has_keys("(FORMAT csv)", "1,a\n\\.\nwhatever\n", &["a"]);
    fails("", "1\ta\n\\.x\n", "22P04 COPY t, line 2");
    let newer = Dialect {
        csv_marker: false,
        ..DIALECT
    };
    let keyed = splitter("", 0, DataType::Varchar).keyed;
    let mut newer = Splitter::new(&copy("CSV"), keyed, newer);
    let rows = split(&mut newer, &[b"\\.\nb\n"]).unwrap();
    assert_eq!(rows.len(), 2);
}

#[test]
fn keys_are_of_their_type() {
    let mut numbers = splitter("", 0, DataType::Bigint);
    let rows = split(&mut numbers, &[b"0012\n-5\n\\x31\n"]).unwrap();
    let keys: Vec<_> = rows.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["12", "-5", "1"]);
    let mut numbers = splitter("", 0, DataType::Bigint);
    let refused = split(&mut numbers, &[b"1\nx\n"]);
    assert_eq!(refused, Err("22P02 COPY t, line 2, column k".to_owned()));
    let mut texts = splitter("", 0, DataType::Varchar);
    let refused = split(&mut texts, &[b"\xff\n"]);
    assert_eq!(refused, Err("22P04 COPY t, line 1, column k".to_owned()));
}

#[test]
fn a_key_that_its_type_would_cut_is_refused() {
    let told = |options: &str, data: &[u8]| {
        let keyed = Keyed {
            max_length: Some(2),
            ..splitter("", 0, DataType::Varchar).keyed
        };
        let mut rows = Splitter::new(&copy(options), keyed, DIALECT);
        split(&mut rows, &[data]).map(|rows| rows.len())
    };
    assert_eq!(told("", "éé\n".as_bytes()), Ok(1));
    let refused = Err("22001 COPY t, line 1, column k".to_owned());
    assert_eq!(told("", b"ab \n"), refused);
    let binary = [header(), binary_row(&[Some(b"ab ")])].concat();
    assert_eq!(told("(FORMAT binary)", &binary), refused);
}

fn header() -> Vec<u8> {
    let mut out = b"PGCOPY\n\xff\r\n\0".to_vec();
    out.put_u32(0);
    out.put_u32(3);
    out.extend_from_slice(b"ext");
    out
}

fn binary_row(fields: &[Option<&[u8]>]) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u16(u16::try_from(fields.len()).unwrap());
    for field in fields {
        match field {
            None => out.put_i32(-1),
            Some(bytes) => {
                out.put_i32(i32::try_from(bytes.len()).unwrap());
                out.extend_from_slice(bytes);
            }
        }
    }
    out
}

#[test]
fn binary_rows_have_a_header_and_a_trailer_for_everybody() {
    let twelve = 12i64.to_be_bytes();
    let first = binary_row(&[None, Some(&twelve), Some(b"x")]);
    let second = binary_row(&[Some(b""), Some(&7i32.to_be_bytes())]);
    let trailer = vec![0xff, 0xff];
    let all = [header(), first.clone(), second.clone(), trailer.clone()];
    let expected: Vec<_> = ["*", "12", "7", "*"]
        .iter()
        .zip(&all)
        .map(|(key, bytes)| ((*key).to_owned(), bytes.clone()))
        .collect();
    let whole = all.concat();
    for cut in 0..=whole.len() {
        let mut rows = splitter("(FORMAT binary)", 1, DataType::Bigint);
        let found = split(&mut rows, &[&whole[..cut], &whole[cut..]]);
        assert_eq!(found.as_ref(), Ok(&expected), "cut at {cut}");
    }
}

#[test]
fn binary_texts_in_another_encoding_are_no_keys() {
    let copy = copy("(FORMAT binary)");
    let keyed = splitter("", 0, DataType::Varchar).keyed;
    let other = Dialect {
        utf8: false,
        ..DIALECT
    };
    // Two letters of windows-1251, and one of UTF-8.
    let data = |key: &[u8]| [header(), binary_row(&[Some(key)]), vec![0xff, 0xff]].concat();
    let told = |key: &[u8], dialect| {
        let mut rows = Splitter::new(&copy, keyed.clone(), dialect);
        split(&mut rows, &[&data(key)]).map(|rows| rows[1].0.clone())
    };
    assert_eq!(told(b"\xc2\xb3", DIALECT), Ok("\u{b3}".to_owned()));
    let refused = Err("22P04 COPY t, line 1, column k".to_owned());
    assert_eq!(told(b"\xc2\xb3", other), refused);
    assert_eq!(told(b"abc", other), Ok("abc".to_owned()));
}

#[test]
fn broken_binary_data_is_refused() {
    let null = [header(), binary_row(&[Some(b"x"), None])].concat();
    let short = [header(), binary_row(&[Some(b"x")])].concat();
    let more = [header(), vec![0xff, 0xff, 0]].concat();
    let cut = [header(), vec![0, 2, 0, 0]].concat();
    for (data, expected) in [
        (null, "23502 COPY t, line 1, column k"),
        (short, "22P04 COPY t, line 1"),
        (more, "22P04 COPY t, line 1"),
        (cut, "22P04 COPY t, line 1"),
        (b"COPYPG and more".to_vec(), "22P04 COPY t, line 1"),
        (Vec::new(), "22P04 COPY t, line 1"),
    ] {
        let mut rows = splitter("(FORMAT binary)", 1, DataType::Bigint);
        assert_eq!(split(&mut rows, &[&data]), Err(expected.to_owned()));
    }
}

/// Bytes that mean something, and some that don't.
fn data() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![
        Just(b'\n'),
        Just(b'\r'),
        Just(b'\\'),
        Just(b'.'),
        Just(b'"'),
        Just(b','),
        Just(b'\t'),
        Just(b'x'),
        Just(b'1'),
        Just(b'N'),
    ];
    prop::collection::vec(byte, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn rows_do_not_depend_on_where_the_data_is_cut(
        data in data(),
        cuts in prop::collection::vec(0usize..60, 0..6),
        option in prop::sample::select(vec![
            "", "(FORMAT csv)", "(FORMAT csv, ESCAPE '\\')", "(HEADER)", "(FORMAT csv, HEADER)",
        ]),
    ) {
        let mut whole = splitter(option, 0, DataType::Varchar);
        let expected = split(&mut whole, &[&data]);
        let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(data.len())).collect();
        cuts.extend([0, data.len()]);
        cuts.sort_unstable();
        let pieces: Vec<_> = cuts.windows(2).map(|cut| &data[cut[0]..cut[1]]).collect();
        let mut cut = splitter(option, 0, DataType::Varchar);
        prop_assert_eq!(split(&mut cut, &pieces), expected.clone());
        // What is sent on is what came, up to where it ends.
        if let Ok(rows) = expected {
            let sent: Vec<u8> = rows.into_iter().flat_map(|(_, bytes)| bytes).collect();
            prop_assert!(data.starts_with(&sent));
            prop_assert!(sent.len() == data.len() || data[sent.len()..].starts_with(b"\\."));
        }
    }

    #[test]
    fn no_data_panics(data in prop::collection::vec(any::<u8>(), 0..80)) {
        for option in ["", "(FORMAT csv)", "(FORMAT binary)"] {
            let mut rows = splitter(option, 1, DataType::Bigint);
            let _ = split(&mut rows, &[&data]);
            let opened = [header(), data.clone()].concat();
            let mut rows = splitter(option, 1, DataType::Bigint);
            let _ = split(&mut rows, &[&opened]);
        }
    }
}
