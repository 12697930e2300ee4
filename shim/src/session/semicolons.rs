//! Whether a text that comes in pieces is a single statement. Pure.
//!
//! Only what can hide a semicolon is told apart: strings, names in quotes, dollar quotes, comments.

/// Where the reader is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Plain,
    /// In a word; whether it is `e` or `E` alone.
    Word {
        escapes: bool,
    },
    String {
        escapes: bool,
    },
    /// Behind a backslash in a string.
    Escaped,
    Name,
    /// In the tag that opens a dollar quote.
    Opening(Vec<u8>),
    /// In a dollar quote; how many bytes of its end were just read.
    Dollars {
        end: Vec<u8>,
        matched: usize,
    },
    Dash,
    Line,
    Slash,
    Block {
        depth: u32,
        last: u8,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Semicolons {
    at: At,
    ended: bool,
    several: bool,
}

impl Semicolons {
    /// Begins with this text.
    pub fn of(text: &[u8]) -> Self {
        let mut this = Self {
            at: At::Plain,
            ended: false,
            several: false,
        };
        this.read(text);
        this
    }

    /// Reads more.
    pub fn read(&mut self, text: &[u8]) {
        for byte in text {
            let at = std::mem::replace(&mut self.at, At::Plain);
            self.at = self.next(at, *byte);
        }
    }

    /// Whether something follows a semicolon.
    pub fn is_several(&self) -> bool {
        self.several
    }

    fn next(&mut self, at: At, byte: u8) -> At {
        match at {
            At::Plain => self.plain(byte),
            At::Word { escapes } => match byte {
                b'\'' => At::String { escapes },
                byte if is_word(byte) || byte == b'$' => At::Word { escapes: false },
                byte => self.plain(byte),
            },
            At::String { escapes } => match byte {
                b'\'' => At::Plain,
                b'\\' if escapes => At::Escaped,
                _ => At::String { escapes },
            },
            At::Escaped => At::String { escapes: true },
            At::Name => match byte {
                b'"' => At::Plain,
                _ => At::Name,
            },
            At::Opening(mut end) => match byte {
                b'$' => {
                    end.push(b'$');
                    At::Dollars { end, matched: 0 }
                }
                byte if is_word(byte) => {
                    end.push(byte);
                    At::Opening(end)
                }
                byte => self.plain(byte),
            },
            At::Dollars { end, matched } => in_dollars(end, matched, byte),
            At::Dash if byte == b'-' => At::Line,
            At::Slash if byte == b'*' => At::Block { depth: 1, last: 0 },
            At::Dash | At::Slash => {
                self.meet();
                self.plain(byte)
            }
            At::Line => match byte {
                b'\n' | b'\r' => At::Plain,
                _ => At::Line,
            },
            At::Block { depth, last } => match (last, byte) {
                (b'*', b'/') if depth == 1 => At::Plain,
                (b'*', b'/') => At::Block {
                    depth: depth - 1,
                    last: 0,
                },
                (b'/', b'*') => At::Block {
                    depth: depth + 1,
                    last: 0,
                },
                _ => At::Block { depth, last: byte },
            },
        }
    }

    fn plain(&mut self, byte: u8) -> At {
        match byte {
            b';' => {
                self.ended = true;
                return At::Plain;
            }
            b'-' => return At::Dash,
            b'/' => return At::Slash,
            0 => return At::Plain,
            byte if byte.is_ascii_whitespace() => return At::Plain,
            _ => self.meet(),
        }
        match byte {
            b'\'' => At::String { escapes: false },
            b'"' => At::Name,
            b'$' => At::Opening(vec![b'$']),
            b'e' | b'E' => At::Word { escapes: true },
            byte if is_word(byte) => At::Word { escapes: false },
            _ => At::Plain,
        }
    }

    /// Something that belongs to a statement.
    fn meet(&mut self) {
        self.several |= self.ended;
    }
}

fn in_dollars(end: Vec<u8>, matched: usize, byte: u8) -> At {
    let matched = match byte {
        byte if byte == end[matched] => matched + 1,
        b'$' => 1,
        _ => 0,
    };
    match matched == end.len() {
        true => At::Plain,
        false => At::Dollars { end, matched },
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// The first word of a text, behind spaces and comments.
pub fn first_word(text: &[u8]) -> &[u8] {
    let mut at = At::Plain;
    let mut reader = Semicolons::of(b"");
    for (start, byte) in text.iter().enumerate() {
        at = reader.next(at, *byte);
        if matches!(at, At::Word { .. }) {
            let word = &text[start..];
            let end = word.iter().position(|byte| !is_word(*byte));
            return &word[..end.unwrap_or(word.len())];
        }
    }
    b""
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(text: &str) -> bool {
        let whole = Semicolons::of(text.as_bytes()).is_several();
        let mut pieces = Semicolons::of(b"");
        text.as_bytes()
            .chunks(1)
            .for_each(|piece| pieces.read(piece));
        assert_eq!(whole, pieces.is_several());
        whole
    }

    #[test]
    fn a_semicolon_counts_only_where_a_statement_ends() {
        for single in [
            "SELECT 1",
            "SELECT 1;",
            "SELECT 1 ; -- done\n /* all; /* of */ it; */ ;",
            "INSERT INTO t VALUES ('a;b', E'it\\'s; x', \"c;d\", 'it''s; x', '\\')",
            "SELECT $$ ; $$, $tag$ ; $ta ; $$ $tag$, $1, a$b",
            "SELECT 1 - 2 / 3;",
        ] {
            assert!(!several(single), "{single}");
        }
        for multi in [
            "SELECT 1; SELECT 2",
            "SELECT '\\'; SELECT 2",
            "SELECT E'\\\\'; x",
            "SELECT $a$ ; $a$; x",
            "SELECT 1; -- x\n y",
            "SELECT 1;/* x */-1",
        ] {
            assert!(several(multi), "{multi}");
        }
    }

    #[test]
    fn the_first_word_is_found_behind_comments() {
        assert_eq!(first_word(b" /* x; */ -- y\n\tInsert into t"), b"Insert");
        assert_eq!(first_word(b"   "), b"");
    }
}
