//! Texts that are not UTF-8, as the shim reads them.
//!
//! A client writes in its `client_encoding`, and only the server knows what that means. The shim
//! keeps a text as a `str` in which every byte that it cannot read has a stand-in: a character of
//! a private range that stands for this byte and no other. To the parser a stand-in is a letter,
//! which is what the byte is to PostgreSQL; and wherever a text is written, the bytes are back:
//!
//! ```text
//!   from the client   53 45 4c … 27 e9 27      SELECT 'é' in LATIN1
//!   as it is read     S  E  L  … '  U+ECE9 '
//!   to the server     53 45 4c … 27 e9 27
//! ```
//! So nothing is lost, and nothing is taken for what it is not: what must be read to be answered,
//! such as a sharding key, is refused when it [`is_unread`].

use std::borrow::Cow;

use super::frame::Frame;

/// Stand-ins are this and the 255 characters behind it; in UTF-8 they begin with these bytes.
const FIRST: u32 = 0xec00;
const LEAD: u8 = 0xee;
const SECOND: std::ops::RangeInclusive<u8> = 0xb0..=0xb3;

/// How the texts of a client are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spelling {
    /// As UTF-8, as far as they are.
    #[default]
    Utf8,
    /// Every byte beyond ASCII belongs to a character that is not known here.
    Bytes,
    /// As [`Spelling::Bytes`], and so does the byte behind it, which may look like ASCII.
    Pairs,
    /// As [`Spelling::Pairs`], with characters of one byte between `a1` and `df`.
    ShiftJis,
    /// As [`Spelling::Pairs`], with characters of four bytes, whose second is a digit.
    Gb18030,
}

impl Spelling {
    /// Of a `client_encoding` under the name that servers report.
    pub fn of(encoding: &str) -> Self {
        match encoding {
            // What is not said to be anything is what the database has.
            "UTF8" | "SQL_ASCII" => Self::Utf8,
            "BIG5" | "GBK" | "UHC" | "JOHAB" => Self::Pairs,
            "SJIS" | "SHIFT_JIS_2004" => Self::ShiftJis,
            "GB18030" => Self::Gb18030,
            _ => Self::Bytes,
        }
    }

    /// Whether only ASCII can be read.
    pub fn is_foreign(self) -> bool {
        self != Self::Utf8
    }

    /// Reads a text; nothing is copied where all of it can be read.
    pub fn read(self, bytes: &[u8]) -> Cow<'_, str> {
        if (self == Self::Utf8 || bytes.is_ascii())
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            return match is_unread(text) {
                false => Cow::Borrowed(text),
                // Characters of the private range that somebody really uses.
                true => Cow::Owned(text.chars().fold(String::new(), |mut read, character| {
                    let mut room = [0; 4];
                    let own = character.encode_utf8(&mut room);
                    match is_stand_in(character) {
                        true => own.bytes().for_each(|byte| read.push(stand_in(byte))),
                        false => read.push(character),
                    }
                    read
                })),
            };
        }
        let mut read = String::with_capacity(bytes.len() * 2);
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            let length = self.character_len(*first, rest.get(1)).min(rest.len());
            let (character, behind) = rest.split_at(length);
            match character {
                [byte] if byte.is_ascii() => read.push(char::from(*byte)),
                _ => read.extend(character.iter().map(|byte| stand_in(*byte))),
            }
            rest = behind;
        }
        Cow::Owned(read)
    }

    fn character_len(self, first: u8, second: Option<&u8>) -> usize {
        match (self, first) {
            (_, ..0x80) | (Self::Utf8 | Self::Bytes, _) => 1,
            (Self::ShiftJis, 0xa1..=0xdf) => 1,
            (Self::Gb18030, _) if second.is_some_and(u8::is_ascii_digit) => 4,
            (Self::Pairs | Self::ShiftJis | Self::Gb18030, _) => 2,
        }
    }
}

/// Reads the texts of a client's message in this way: statements and names, not values.
pub fn spell(frame: &mut Frame, spelling: Spelling) {
    let (start, texts) = match frame.tag() {
        b'Q' | b'E' | b'f' => (0, 1),
        b'P' | b'B' => (0, 2),
        b'D' | b'C' => (1, 1),
        _ => return,
    };
    let body = frame.body();
    let zeros = memchr::memchr_iter(0, body.get(start..).unwrap_or_default());
    let Some(end) = zeros.take(texts).nth(texts - 1).map(|at| start + at) else {
        return;
    };
    if body[start..end].is_ascii() {
        return;
    }
    let read = body[start..end].split(|byte| *byte == 0);
    let read: Vec<_> = read.map(|text| spelling.read(text)).collect();
    if read.iter().any(|text| matches!(text, Cow::Owned(_))) {
        let read = read.join("\0");
        frame.spell([&body[..start], read.as_bytes(), &body[end..]].concat());
    }
}

/// Whether a text has bytes that could not be read.
pub fn is_unread(text: &str) -> bool {
    next_stand_in(text.as_bytes()).is_some()
}

/// Appends the bytes that a text was read from.
pub(super) fn write(text: &[u8], out: &mut bytes::BytesMut) {
    let mut rest = text;
    while let Some(at) = next_stand_in(rest) {
        out.extend_from_slice(&rest[..at]);
        let (stand_in, behind) = rest[at..].split_at(3);
        match (stand_in[1] & 0x03) << 6 | stand_in[2] & 0x3f {
            // No text has this byte, and it would end one: somebody's own character.
            0 => out.extend_from_slice(stand_in),
            byte => out.extend_from_slice(&[byte]),
        }
        rest = behind;
    }
    out.extend_from_slice(rest);
}

fn next_stand_in(text: &[u8]) -> Option<usize> {
    let mut leads = memchr::memchr_iter(LEAD, text);
    leads.find(|at| {
        text.len() > at + 2 && text.get(at + 1).is_some_and(|byte| SECOND.contains(byte))
    })
}

fn stand_in(byte: u8) -> char {
    char::from_u32(FIRST + u32::from(byte)).expect("the private range has no gaps")
}

fn is_stand_in(character: char) -> bool {
    (FIRST..FIRST + 256).contains(&u32::from(character))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{Frontend, frontend};
    use proptest::prelude::*;

    const ALL: [Spelling; 5] = [
        Spelling::Utf8,
        Spelling::Bytes,
        Spelling::Pairs,
        Spelling::ShiftJis,
        Spelling::Gb18030,
    ];

    fn written(text: &str) -> Vec<u8> {
        let mut out = bytes::BytesMut::new();
        write(text.as_bytes(), &mut out);
        out.to_vec()
    }

    proptest! {
        #[test]
        fn what_was_read_is_written_as_it_came(
            bytes in prop::collection::vec(1u8..=255, 0..100), which in 0..5usize,
        ) {
            prop_assert_eq!(written(&ALL[which].read(&bytes)), bytes);
        }

        #[test]
        fn different_texts_are_read_differently(text in "\\PC*", bytes in any::<Vec<u8>>()) {
            let (one, other) = (Spelling::Utf8.read(text.as_bytes()), Spelling::Utf8.read(&bytes));
            prop_assert_eq!(one == other, text.as_bytes() == bytes.as_slice());
        }
    }

    #[test]
    fn utf8_is_read_where_it_is_utf8() {
        assert!(matches!(
            Spelling::Utf8.read("é \u{feff}".as_bytes()),
            Cow::Borrowed("é \u{feff}")
        ));
        assert_eq!(Spelling::Utf8.read(b"a\xe9"), "a\u{ece9}");
        let private = Spelling::Utf8.read("é\u{ece9}".as_bytes());
        assert!(private.starts_with('é') && is_unread(&private));
        assert_eq!(written(&private), "é\u{ece9}".as_bytes());
        assert_eq!(written("a\u{ec00}b"), "a\u{ec00}b".as_bytes());
    }

    #[test]
    fn in_another_encoding_only_ascii_is_read() {
        assert!(is_unread(&Spelling::Bytes.read("é".as_bytes())));
        assert!(matches!(
            Spelling::Bytes.read(b"SELECT 1"),
            Cow::Borrowed(_)
        ));
    }

    /// The second byte of a character may be a quote's neighbour, a backslash or a semicolon.
    #[test]
    fn bytes_that_only_look_like_ascii_are_not_taken_for_it() {
        let read = |spelling: Spelling, bytes: &[u8]| spelling.read(bytes).replace(is_stand_in, "");
        assert_eq!(read(Spelling::ShiftJis, b"'\x95\x5c'\xb1'"), "'''");
        assert_eq!(read(Spelling::Pairs, b"'\xa5\x5c'\xd9\x3b'"), "'''");
        assert_eq!(
            read(Spelling::Gb18030, b"'\x81\x30\x81\x30'\x81\x5c'"),
            "'''"
        );
        assert_eq!(read(Spelling::Bytes, b"'\xe9\x5c'"), "'\\'");
        // Cut off: the server refuses it.
        assert_eq!(read(Spelling::Pairs, b"'\xa5"), "'");
    }

    #[test]
    fn a_message_is_read_in_another_way_and_sent_as_it_came() {
        let mut parse = Frame::new(b'P', b"s\xe9\0SELECT '\xe9'\0\0\x01\xff\xff\xff\xff");
        spell(&mut parse, Spelling::Bytes);
        let Ok(Frontend::Parse {
            statement,
            sql,
            types,
        }) = Frontend::parse(&parse)
        else {
            panic!("a Parse");
        };
        assert_eq!((statement, sql), ("s\u{ece9}", "SELECT '\u{ece9}'"));
        assert_eq!(types.iter().collect::<Vec<_>>(), [u32::MAX]);
        assert!(parse.raw().windows(2).any(|pair| pair == b"'\xe9"));
        let mut out = bytes::BytesMut::new();
        frontend::parse(statement, sql, &[u32::MAX], &mut out);
        assert_eq!(out, parse.raw());
        let mut execute = Frame::new(b'E', b"\xe9\0\0\0\0\xff");
        spell(&mut execute, Spelling::Utf8);
        let expected = Frontend::Execute {
            portal: "\u{ece9}",
            max_rows: 255,
        };
        assert_eq!(Frontend::parse(&execute), Ok(expected));
        let mut cut = Frame::new(b'Q', b"\xe9");
        spell(&mut cut, Spelling::Bytes);
        assert!(Frontend::parse(&cut).is_err());
    }

    #[test]
    fn encodings_are_known_by_the_names_that_servers_report() {
        let kinds = [
            "UTF8", "LATIN1", "KOI8R", "EUC_JP", "SJIS", "BIG5", "GB18030",
        ]
        .map(Spelling::of);
        let expected = [ALL[0], ALL[1], ALL[1], ALL[1], ALL[3], ALL[2], ALL[4]];
        assert_eq!(kinds, expected);
    }
}
