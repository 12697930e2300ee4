use super::*;
use crate::proto::frame;
use crate::proto::frontend;
use bytes::BytesMut;

fn frames(write: impl FnOnce(&mut BytesMut)) -> Vec<Frame> {
    let mut out = BytesMut::new();
    write(&mut out);
    std::iter::from_fn(|| frame::take(&mut out).unwrap()).collect()
}

fn cut<'a>(frames: &'a [Frame], names: &mut Names) -> Batch<'a> {
    split(
        frames,
        names,
        &Registry::default(),
        &PlanCache::new(1 << 20),
    )
    .unwrap()
}

#[test]
fn every_execute_ends_a_step_and_closes_stay_with_it() {
    let frames = frames(|out| {
        frontend::parse("s", "SELECT $1", &[], out);
        frontend::bind("", "s", &[Some("1")], out);
        frontend::execute("", 0, out);
        frontend::bind("", "s", &[Some("2")], out);
        frontend::execute("", 0, out);
        frontend::close(Subject::Portal(""), out);
        frontend::describe(Subject::Statement("s"), out);
    });
    let mut names = Names::default();
    let batch = cut(&frames, &mut names);
    let lens: Vec<_> = batch.steps.iter().map(|step| step.messages.len()).collect();
    assert_eq!(lens, [3, 3, 1]);
    let executes: Vec<_> = batch.steps.iter().map(|step| step.executes).collect();
    assert_eq!(executes, [true, true, false]);
    let value = route::Params::param(&batch.steps[1], 1).unwrap().value;
    assert_eq!(value, Some(&b"2"[..]));
    assert!(route::Params::param(&batch.steps[1], 2).is_none());
}

#[test]
fn an_unknown_name_ends_the_batch_there() {
    let frames = frames(|out| {
        frontend::parse("", "SELECT 1", &[], out);
        frontend::bind("", "", &[], out);
        frontend::execute("", 0, out);
        frontend::bind("", "nobody", &[], out);
        frontend::execute("", 0, out);
    });
    let batch = cut(&frames, &mut Names::default());
    assert_eq!(batch.steps.len(), 1);
    assert_eq!(batch.error.unwrap().code, "26000");
}

#[test]
fn a_named_statement_is_not_parsed_twice_and_a_closed_one_may_be() {
    let twice = frames(|out| {
        frontend::parse("s", "SELECT 1", &[], out);
        frontend::parse("s", "SELECT 2", &[], out);
    });
    assert_eq!(
        cut(&twice, &mut Names::default()).error.unwrap().code,
        "42P05"
    );
    let closed = frames(|out| {
        frontend::parse("s", "SELECT 1", &[], out);
        frontend::close(Subject::Statement("s"), out);
        frontend::parse("s", "SELECT 2", &[], out);
    });
    assert!(cut(&closed, &mut Names::default()).error.is_none());
}

#[test]
fn a_step_speaks_of_one_statement_only() {
    let frames = frames(|out| {
        frontend::parse("a", "SELECT 1", &[], out);
        frontend::describe(Subject::Statement("a"), out);
        frontend::parse("", "BEGIN", &[], out);
        frontend::bind("", "", &[], out);
        frontend::execute("", 0, out);
    });
    let batch = cut(&frames, &mut Names::default());
    let texts: Vec<_> = batch.steps.iter().map(|step| step.sql()).collect();
    assert_eq!(texts, ["SELECT 1", "BEGIN"]);
}

#[test]
fn a_portal_that_goes_on_in_its_batch_keeps_its_parameters() {
    let frames = frames(|out| {
        frontend::parse("", "SELECT $1", &[], out);
        frontend::bind("p", "", &[Some("7")], out);
        frontend::execute("p", 1, out);
        frontend::execute("p", 1, out);
    });
    let batch = cut(&frames, &mut Names::default());
    let value = route::Params::param(&batch.steps[1], 1).unwrap().value;
    assert_eq!(value, Some(&b"7"[..]));
}

#[test]
fn a_portal_that_is_executed_again_is_told_from_one_that_is_bound_again() {
    let frames = frames(|out| {
        frontend::parse("s", "SELECT 1", &[], out);
        for portal in ["p", "q"] {
            frontend::bind(portal, "s", &[], out);
        }
        for portal in ["p", "q", "p"] {
            frontend::execute(portal, 0, out);
        }
        frontend::bind("p", "s", &[], out);
        frontend::execute("p", 0, out);
    });
    let mut names = Names::default();
    let batch = cut(&frames, &mut names);
    let again: Vec<_> = batch.steps.iter().map(|step| step.again).collect();
    assert_eq!(again, [false, false, true, false]);
}

#[test]
fn a_portal_of_an_earlier_batch_is_resumed_where_it_lives() {
    let mut names = Names::default();
    let first = frames(|out| {
        frontend::parse("", "SELECT 1", &[], out);
        frontend::bind("p", "", &[], out);
        frontend::execute("p", 1, out);
    });
    cut(&first, &mut names);
    names.portals.get_mut("p").unwrap().shard = Some(ShardNumber(1));
    let second = frames(|out| frontend::execute("p", 1, out));
    let batch = cut(&second, &mut names);
    assert_eq!(batch.steps[0].resumes, Some(ShardNumber(1)));
    assert_eq!(batch.steps[0].sql(), "SELECT 1");
}

#[test]
fn in_another_encoding_only_ascii_is_read_of_parameters() {
    let frames = frames(|out| {
        frontend::parse("", "SELECT $1, $2, $3", &[23], out);
        frontend::bind("", "", &[Some("1"), Some("e"), Some("é")], out);
        frontend::execute("", 0, out);
    });
    let mut names = Names {
        foreign: true,
        ..Names::default()
    };
    let batch = cut(&frames, &mut names);
    let known = |number| route::Params::param(&batch.steps[0], number).is_some();
    assert_eq!([1, 2, 3].map(known), [true, true, false]);
}

#[test]
fn where_the_server_minds_names_nothing_is_judged_by_them() {
    let frames = frames(|out| {
        frontend::parse("s", "SELECT 1", &[], out);
        frontend::parse("s", "SELECT 2", &[], out);
        frontend::bind("", "of_sql", &[], out);
        frontend::execute("", 0, out);
        frontend::close(Subject::Statement("s"), out);
    });
    let mut names = Names {
        own: true,
        ..Names::default()
    };
    let batch = cut(&frames, &mut names);
    assert!(batch.error.is_none());
    let messages = batch.steps.iter().flat_map(|step| &step.messages);
    assert!(
        messages
            .last()
            .is_some_and(|last| matches!(last, Message::CloseOwn { .. }))
    );
    assert!(names.statements.is_empty());
}
