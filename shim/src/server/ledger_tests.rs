//! Conversations, written as the letters of their messages.

use super::*;
use crate::proto::Frame;

/// `sent("PBES")`: tags only; statement names are given by `sent_named`.
fn sent(ledger: &mut Ledger, tags: &str) {
    tags.bytes().for_each(|tag| ledger.note_sent(tag, b"\0\0"));
}

fn sent_named(ledger: &mut Ledger, tag: u8, name: &str) {
    let kind = if tag == b'C' { "S" } else { "" };
    ledger.note_sent(tag, format!("{kind}{name}\0").as_bytes());
}

/// Answers; Z stands for an idle session.
fn received(ledger: &mut Ledger, tags: &str) -> Result<(), ProtocolError> {
    tags.bytes().try_for_each(|tag| {
        let body: &[u8] = if tag == b'Z' { b"I" } else { b"" };
        ledger.note_received(&Frame::new(tag, body)).map(|_| ())
    })
}

fn ledger() -> Ledger {
    Ledger::new(2)
}

#[test]
fn a_batch_is_at_rest_once_its_ready_for_query_came() {
    let mut ledger = ledger();
    sent(&mut ledger, "PBE");
    assert!(!ledger.in_sync() && ledger.needs_sync() && ledger.owed() == 0);
    sent(&mut ledger, "SQ");
    assert_eq!(ledger.owed(), 2);
    received(&mut ledger, "12CZ").expect("fine");
    assert!(!ledger.in_sync());
    received(&mut ledger, "CZ").expect("fine");
    assert!(ledger.in_sync());
    assert!(received(&mut ledger, "Z").is_err(), "nobody asked for it");
}

#[test]
fn a_sync_behind_a_copy_in_is_ignored_by_the_server() {
    let mut ledger = ledger();
    sent(&mut ledger, "PBES");
    received(&mut ledger, "12G").expect("fine");
    assert_eq!((ledger.copying(), ledger.owed()), (Copying::In, 0));
    assert!(!ledger.in_sync());
    sent(&mut ledger, "ddc");
    assert_eq!(ledger.copying(), Copying::No);
    sent(&mut ledger, "S");
    received(&mut ledger, "CZ").expect("fine");
    assert!(ledger.in_sync());
}

#[test]
fn copy_data_sent_before_it_is_asked_for_is_counted_right() {
    let mut ledger = ledger();
    sent(&mut ledger, "PBEdcS");
    received(&mut ledger, "12GCZ").expect("fine");
    assert!(ledger.in_sync());
    sent(&mut ledger, "Qdc");
    received(&mut ledger, "GCZ").expect("fine");
    assert!(ledger.in_sync());
}

#[test]
fn an_error_ends_a_copy_and_its_late_data_is_ignored() {
    let mut ledger = ledger();
    sent(&mut ledger, "Q");
    received(&mut ledger, "G").expect("fine");
    sent(&mut ledger, "d");
    received(&mut ledger, "EZ").expect("fine");
    sent(&mut ledger, "dc");
    assert!(ledger.in_sync(), "the server ignores data outside a COPY");
    sent(&mut ledger, "PBES");
    received(&mut ledger, "12GE").expect("fine");
    sent(&mut ledger, "cS");
    received(&mut ledger, "Z").expect("fine");
    assert!(ledger.in_sync());
}

#[test]
fn a_statement_is_known_once_its_parse_completed() {
    let mut ledger = ledger();
    sent_named(&mut ledger, b'P', "a");
    assert!(
        ledger.prepared_at("a").is_some(),
        "on its way: not to be sent again"
    );
    sent_named(&mut ledger, b'P', "b");
    sent(&mut ledger, "S");
    received(&mut ledger, "1EZ").expect("fine");
    assert!(ledger.prepared_at("a").is_some());
    assert!(ledger.prepared_at("b").is_none(), "its Parse failed");
    sent_named(&mut ledger, b'C', "a");
    sent(&mut ledger, "S");
    received(&mut ledger, "3Z").expect("fine");
    assert!(ledger.prepared_at("a").is_none());
}

#[test]
fn an_error_in_one_segment_leaves_the_next_one_alone() {
    let mut ledger = ledger();
    sent_named(&mut ledger, b'P', "a");
    sent(&mut ledger, "S");
    sent_named(&mut ledger, b'P', "b");
    sent(&mut ledger, "S");
    received(&mut ledger, "EZ").expect("fine");
    assert!(ledger.prepared_at("a").is_none() && ledger.prepared_at("b").is_some());
    received(&mut ledger, "1Z").expect("fine");
    assert!(ledger.prepared_at("b").is_some() && ledger.in_sync());
}

#[test]
fn statements_beyond_the_limit_are_closed_unseen_at_the_next_rest() {
    let mut ledger = ledger();
    for name in ["a", "b", "c"] {
        sent_named(&mut ledger, b'P', name);
    }
    assert!(
        ledger.take_evicted().is_empty(),
        "not in the middle of a batch"
    );
    sent(&mut ledger, "S");
    received(&mut ledger, "111Z").expect("fine");
    assert_eq!(ledger.take_evicted(), ["a"]);
    sent_named(&mut ledger, b'C', "b");
    sent(&mut ledger, "S");
    let close = Frame::new(b'3', b"");
    assert_eq!(ledger.note_received(&close), Ok(Noted::Swallow));
    assert_eq!(ledger.note_received(&close), Ok(Noted::Pass));
    assert!(ledger.prepared_at("b").is_none() && ledger.prepared_at("c").is_some());
}

#[test]
fn a_skipped_query_is_forgotten_and_a_sync_asked_for() {
    let mut ledger = ledger();
    sent(&mut ledger, "PBEQ");
    received(&mut ledger, "E").expect("fine");
    assert!(ledger.skip_to_sync());
    sent(&mut ledger, "S");
    received(&mut ledger, "Z").expect("fine");
    assert!(ledger.in_sync());
    sent(&mut ledger, "PBES");
    received(&mut ledger, "E").expect("fine");
    assert!(!ledger.skip_to_sync(), "the batch has its own Sync");
}
