//! Properties of the protocol code: cutting a stream anywhere changes nothing, what is encoded
//! is read back, and no input panics.

use bytes::{BufMut, Bytes, BytesMut};
use proptest::prelude::*;

use super::frame::{self, Frame, take, take_frontend, take_password};
use super::frontend::{self, Format, Frontend, Subject};
use super::scram::{Exchange, Verifier};
use super::startup::{self, CancelKey, Startup, StartupPacket, take_startup};
use super::{ErrorFields, ProtocolError, Severity, TxStatus, answer, backend};

fn frames() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let tag = prop::sample::select(b"DdTCZ12SEN".to_vec());
    prop::collection::vec((tag, prop::collection::vec(any::<u8>(), 0..40)), 0..12)
}

/// Without the stand-ins for bytes: what is read never has one that stands for another.
fn text() -> impl Strategy<Value = String> {
    "[^\0\u{ec00}-\u{ecff}]{0,20}"
}

fn encoded(write: impl FnOnce(&mut BytesMut)) -> Frame {
    let mut out = BytesMut::new();
    write(&mut out);
    let frame = take_any(&mut out);
    assert!(out.is_empty(), "one message and nothing after it");
    frame
}

fn take_any(buffer: &mut BytesMut) -> Frame {
    take(buffer).expect("well formed").expect("whole")
}

proptest! {
    #[test]
    fn a_stream_cut_anywhere_gives_the_same_frames(
        sent in frames(),
        cuts in prop::collection::vec(1usize..30, 1..20),
    ) {
        let mut stream = BytesMut::new();
        sent.iter().for_each(|(tag, body)| Frame::new(*tag, body).encode(&mut stream));
        let (mut buffer, mut received, mut rest) = (BytesMut::new(), Vec::new(), &stream[..]);
        for cut in cuts.into_iter().chain(std::iter::repeat(usize::MAX)) {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            buffer.extend_from_slice(piece);
            rest = after;
            while let Some(frame) = take(&mut buffer).expect("well formed") {
                received.push((frame.tag(), frame.body().to_vec()));
            }
            if rest.is_empty() {
                break;
            }
        }
        prop_assert!(buffer.is_empty());
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn a_scan_finds_exactly_the_rows_at_the_head(sent in frames(), missing in 0usize..8) {
        let mut stream = BytesMut::new();
        sent.iter().for_each(|(tag, body)| Frame::new(*tag, body).encode(&mut stream));
        let is_row = |tag: u8| matches!(tag, b'D' | b'd');
        stream.truncate(stream.len().saturating_sub(missing));
        let run = frame::scan(&stream).expect("well formed");
        let rows = frame::frames(&stream).map_while(Result::ok).take_while(|(tag, _)| is_row(*tag));
        prop_assert_eq!(run.frames, rows.clone().count());
        prop_assert_eq!(run.len, rows.map(|(_, body)| body.len() + frame::HEADER).sum::<usize>());
        let next = stream.get(run.len).copied();
        prop_assert_eq!(run.stop, next.filter(|tag| !is_row(*tag)));
    }

    #[test]
    fn no_bytes_from_a_client_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = take_startup(&mut BytesMut::from(&bytes[..]));
        let _ = take_password(&mut BytesMut::from(&bytes[..]));
        let _ = frontend::sasl_initial(&bytes);
        let _ = frontend::password_text(&bytes);
        let mut buffer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = take_frontend(&mut buffer) {}
        for tag in *b"QPBDECSHdcfpFX?" {
            let frame = Frame::new(tag, &bytes);
            if let Ok(Frontend::Bind(bind)) = Frontend::parse(&frame) {
                prop_assert_eq!(bind.params().count(), bind.len());
            }
            let _ = frontend::with_statement_name(&frame, "name", &mut BytesMut::new());
        }
        if let Ok(exchange) = Exchange::start(
            Verifier::mock("u", &[7; 32]),
            super::scram::MECHANISM,
            None,
            &bytes,
        ) {
            prop_assert!(exchange.finish(&bytes).is_err());
        }
    }

    #[test]
    fn no_bytes_from_a_server_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = frame::scan(&bytes);
        let _ = ErrorFields::parse(&bytes);
        let _ = answer::parameter_status(&bytes);
        let _ = answer::ready_for_query(&bytes);
        let _ = answer::backend_key_data(&Bytes::copy_from_slice(&bytes));
        let _ = answer::command_complete(&bytes);
        let _ = answer::column_names(&bytes);
        let _ = answer::text_row(&bytes);
        frame::frames(&bytes).for_each(drop);
    }

    #[test]
    fn statements_are_read_back(
        name in text(), sql in text(), types in prop::collection::vec(any::<u32>(), 0..5),
        renamed in text(),
    ) {
        let frame = encoded(|out| frontend::parse(&name, &sql, &types, out));
        let check = |frame: &Frame, expected: &str| {
            let Ok(Frontend::Parse { statement, sql: text, types: oids }) = Frontend::parse(frame)
            else { panic!("a Parse was encoded") };
            assert_eq!((statement, text), (expected, sql.as_str()));
            assert!(oids.iter().eq(types.iter().copied()));
        };
        check(&frame, &name);
        check(&renamed_to(&frame, &renamed), &renamed);
    }

    #[test]
    fn parameters_are_read_back(
        portal in text(), name in text(), renamed in text(),
        params in prop::collection::vec(prop::option::of(text()), 0..6),
    ) {
        let given: Vec<_> = params.iter().map(|param| param.as_deref()).collect();
        let frame = encoded(|out| frontend::bind(&portal, &name, &given, out));
        let frame = renamed_to(&frame, &renamed);
        let Ok(Frontend::Bind(bind)) = Frontend::parse(&frame) else { panic!("a Bind") };
        prop_assert_eq!((bind.portal, bind.statement), (portal.as_str(), renamed.as_str()));
        let read: Vec<_> = bind.params().map(|param| param.value).collect();
        let expected: Vec<_> = given.iter().map(|param| param.map(str::as_bytes)).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn rows_and_errors_are_read_back(
        values in prop::collection::vec(prop::option::of(text()), 0..6),
        message in text(), detail in prop::option::of(text()), hint in prop::option::of(text()),
    ) {
        let given: Vec<_> = values.iter().map(|value| value.as_deref()).collect();
        let frame = encoded(|out| backend::data_row(&given, out));
        prop_assert_eq!(answer::text_row(frame.body()), Ok(values));
        let severity = "ERROR".to_owned();
        let code = "22023".to_owned();
        let more = vec![(b'n', "check_name".to_owned())];
        let fields = ErrorFields { severity, code, message, detail, hint, more };
        let frame = encoded(|out| backend::error_fields(Severity::Error, &fields, out));
        prop_assert_eq!(ErrorFields::parse(frame.body()), Ok(fields));
    }

    #[test]
    fn startup_packets_are_read_back(
        pairs in prop::collection::vec(("[a-z._]{1,9}", text()), 0..5),
        pid in any::<i32>(), secret in prop::collection::vec(any::<u8>(), 4..=256),
    ) {
        let mut out = BytesMut::new();
        let given = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        startup::startup_message(given, &mut out);
        let startup = Startup { major: 3, minor: 0, params: pairs };
        prop_assert_eq!(take_startup(&mut out), Ok(Some(StartupPacket::Startup(startup))));
        let key = CancelKey { pid, secret: secret.into() };
        startup::cancel_request(&key, &mut out);
        prop_assert_eq!(take_startup(&mut out), Ok(Some(StartupPacket::Cancel(key))));
        startup::ssl_request(&mut out);
        prop_assert_eq!(take_startup(&mut out), Ok(Some(StartupPacket::Ssl)));
    }
}

#[test]
fn impossible_lengths_are_refused_as_soon_as_the_header_is_there() {
    let refused = |bytes: &[u8]| take_frontend(&mut BytesMut::from(bytes)).is_err();
    assert!(refused(b"Q\0\0\0\x03"), "shorter than the length word");
    assert!(refused(b"Q\x7f\xff\xff\xff"), "above 1 GB");
    assert!(refused(b"S\0\0\x40\0"), "a Sync of 16 KB");
    assert!(refused(b"!"), "no such tag");
    assert!(
        !refused(b"Q\0\0\x40\0"),
        "a long query that is not whole yet"
    );
    let password = |bytes: &[u8]| take_password(&mut BytesMut::from(bytes)).is_err();
    assert!(password(b"Q\0\0\0\x05\0") && password(b"p\0\x01\0\0"));
}

#[test]
fn impossible_startup_packets_are_refused() {
    let packet = |words: &[u32], tail: &[u8]| {
        let mut out = BytesMut::new();
        words.iter().for_each(|word| out.put_u32(*word));
        out.extend_from_slice(tail);
        take_startup(&mut out)
    };
    let malformed = |what| Err(ProtocolError::Malformed(what));
    assert_eq!(
        packet(&[7], b""),
        Err(ProtocolError::BadLength { tag: 0, length: 7 })
    );
    assert!(packet(&[10_001], b"").is_err());
    assert_eq!(
        packet(&[8, 2 << 16], b""),
        Err(ProtocolError::UnsupportedProtocol { major: 2, minor: 0 })
    );
    assert_eq!(
        packet(&[13, 3 << 16], b"user\0"),
        malformed("startup packet")
    );
    assert_eq!(
        packet(&[12, 80_877_102, 1], b""),
        malformed("cancel request")
    );
    assert_eq!(
        packet(&[10, 3 << 16], b"\0\0"),
        malformed("startup packet"),
        "bytes at the end"
    );
    assert!(
        packet(&[9, 80_877_103], b"\0").is_err(),
        "an SSLRequest with a body"
    );
}

#[test]
fn newer_protocols_and_unknown_options_are_negotiated_down() {
    let startup = |minor, name: &str| {
        let params = vec![
            ("user".to_owned(), "u".to_owned()),
            (name.to_owned(), String::new()),
        ];
        Startup {
            major: 3,
            minor,
            params,
        }
        .negotiation()
    };
    assert_eq!(startup(0, "x"), None);
    assert_eq!(startup(2, "x"), None, "3.2 is spoken");
    assert_eq!(
        startup(7, "_pq_.a").as_deref(),
        Some(&b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.a\0"[..])
    );
    assert_eq!(
        startup(7, "x").as_deref(),
        Some(&b"v\0\0\0\x0c\0\x03\0\x02\0\0\0\0"[..])
    );
}

#[test]
fn a_database_defaults_to_the_user() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let startup = Startup {
        params: vec![pair("user", "ann")],
        ..Startup::default()
    };
    assert_eq!(startup.database(), Some("ann"));
    let params = vec![pair("user", "ann"), pair("database", "prod")];
    assert_eq!(
        Startup {
            params,
            ..Startup::default()
        }
        .database(),
        Some("prod")
    );
}

#[test]
fn formats_of_parameters_follow_the_three_forms_of_a_bind() {
    let bind = |formats: &[u16], values: u16| {
        let mut body = BytesMut::from(&b"\0\0"[..]);
        body.put_u16(formats.len() as u16);
        formats.iter().for_each(|code| body.put_u16(*code));
        body.put_u16(values);
        (0..values).for_each(|_| body.put_i32(0));
        body.put_u16(1);
        body.put_u16(1);
        Frame::new(b'B', &body)
    };
    let read = |frame: &Frame| match Frontend::parse(frame) {
        Ok(Frontend::Bind(bind)) => {
            assert_eq!(bind.result_format(3), Format::Binary);
            Some(bind.params().map(|param| param.format).collect::<Vec<_>>())
        }
        _ => None,
    };
    use Format::{Binary, Text};
    assert_eq!(read(&bind(&[], 2)), Some(vec![Text, Text]));
    assert_eq!(read(&bind(&[1], 2)), Some(vec![Binary, Binary]));
    assert_eq!(read(&bind(&[0, 1], 2)), Some(vec![Text, Binary]));
    assert_eq!(
        read(&bind(&[0, 1], 3)),
        None,
        "two formats for three values"
    );
    assert_eq!(read(&bind(&[2], 1)), None, "no such format");
}

fn renamed_to(frame: &Frame, name: &str) -> Frame {
    encoded(|out| frontend::with_statement_name(frame, name, out).expect("whole"))
}

#[test]
fn only_statements_are_renamed() {
    let portal = encoded(|out| frontend::describe(Subject::Portal("p"), out));
    assert_eq!(renamed_to(&portal, "x"), portal);
    let close = encoded(|out| frontend::close(Subject::Statement("s"), out));
    let renamed = renamed_to(&close, "other");
    assert_eq!(
        Frontend::parse(&renamed),
        Ok(Frontend::Close(Subject::Statement("other")))
    );
}

#[test]
fn the_transaction_state_is_read_back() {
    for status in [TxStatus::Idle, TxStatus::InTransaction, TxStatus::Failed] {
        let ready = encoded(|out| backend::ready_for_query(status, out));
        assert_eq!(answer::ready_for_query(ready.body()), Ok(status));
    }
}

#[test]
fn a_character_of_the_stand_ins_passes_a_startup_packet_as_its_bytes() {
    // As a quote it would end the literal that the value is put into.
    let sent = "a\u{ec27}b";
    let mut out = BytesMut::new();
    let body = [b"\0\x03\0\0user\0".as_slice(), sent.as_bytes(), b"\0\0"].concat();
    out.extend_from_slice(&u32::try_from(body.len() + 4).expect("short").to_be_bytes());
    out.extend_from_slice(&body);
    let Ok(Some(StartupPacket::Startup(startup))) = take_startup(&mut out) else {
        panic!("a startup packet")
    };
    assert_ne!(startup.params[0].1, sent);
    let frame = encoded(|out| frontend::query(&startup.params[0].1, out));
    assert_eq!(frame.body(), [sent.as_bytes(), b"\0"].concat());
}
