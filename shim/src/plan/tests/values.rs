use pg_query::NodeEnum;

use super::super::array::split_array;
use super::super::value::value;
use super::super::{ParamType, Value};

fn of(expression: &str) -> Value {
    let parsed = pg_query::parse(&format!("SELECT {expression}"), 0)
        .unwrap()
        .protobuf;
    let statement = parsed.stmts[0].stmt.as_ref().unwrap();
    let Some(NodeEnum::SelectStmt(select)) = &statement.node else {
        panic!("no select")
    };
    let Some(NodeEnum::ResTarget(target)) = &select.target_list[0].node else {
        panic!()
    };
    value(target.val.as_ref().unwrap())
}

#[test]
fn constants_keep_their_value() {
    for (expression, text) in [
        ("12", "12"),
        ("0012", "12"),
        ("-5", "-5"),
        ("- 5", "-5"),
        ("-(5)", "-5"),
        ("+0", "0"),
        ("-0", "0"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("'12'", "12"),
        ("'12'::bigint", "12"),
        ("'0012'::bigint::text", "12"),
        ("' 12 '::int", "12"),
        ("'12'::text::bigint", "12"),
        ("CAST('12' AS int8)", "12"),
        ("int8 '12'", "12"),
        ("42::text", "42"),
        ("-(5::bigint)", "-5"),
        ("12.0::numeric", "12.0"),
        ("1.2e1", "12"),
        ("1e3", "1000"),
        ("120E-1", "12.0"),
        ("5e-2", "0.05"),
        (".12e2::bigint", "12"),
        ("12.0::bigint", "12"),
        ("'ab'::varchar", "ab"),
        ("E'a\\\\b'", "a\\b"),
        (
            "'{A0EEBC99-9C0B4EF8-BB6D6BB9BD380A11}'::uuid",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ),
    ] {
        assert_eq!(of(expression), Value::Text(text.to_owned()), "{expression}");
    }
}

#[test]
fn casts_that_change_a_value_are_not_followed() {
    for expression in [
        "12.5::bigint",
        "'12.5'::bigint",
        "300::smallint::int::text::char(2)",
        "'abc'::varchar(2)",
        "'abc'::char(5)",
        "'abc'::name",
        "9007199254740993::float8",
        "70000::smallint",
        "1 + 1",
        "now()",
        "'a' || 'b'",
        "'a' COLLATE \"C\"",
        "true",
        "1e200",
        "$1::bigint::text",
        "$1::numeric::bigint",
        "$1::varchar(3)",
        "$1::float8",
        "-$1",
        "'12'::my.type",
    ] {
        assert_eq!(of(expression), Value::Unknown, "{expression}");
    }
}

#[test]
fn parameters_survive_casts_that_keep_them() {
    assert_eq!(of("$2"), Value::Param(2));
    // The first cast is the type that the parameter has on the wire.
    for (expression, param_type) in [
        ("$2::bigint", ParamType::Integer),
        ("$2::int4", ParamType::Integer),
        ("$2::text", ParamType::Text),
        ("$2::text::varchar", ParamType::Text),
        ("$2::text::bigint", ParamType::Spelling),
        ("$2::text::uuid", ParamType::Spelling),
        ("CAST($2 AS uuid)", ParamType::Uuid),
        ("$2::numeric", ParamType::Numeric),
    ] {
        assert_eq!(
            of(expression),
            Value::TypedParam(2, param_type),
            "{expression}"
        );
    }
    assert_eq!(of("NULL::bigint"), Value::Null);
}

#[test]
fn array_texts_are_split_as_postgresql_does() {
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(
        split_array("{1, 2,3}"),
        Some(vec![some("1"), some("2"), some("3")])
    );
    assert_eq!(split_array("{}"), Some(vec![]));
    assert_eq!(
        split_array(r#"{"a,b",NULL,"NULL",x y,"q\"q"}"#),
        Some(vec![
            some("a,b"),
            None,
            some("NULL"),
            some("x y"),
            some("q\"q")
        ])
    );
    // White space around a quoted member is none of it, an escaped character always is.
    let one = |text: &str| Some(vec![some(text)]);
    assert_eq!(split_array("{\"a\" }"), one("a"));
    assert_eq!(split_array("{ \"a \"\t\n}"), one("a "));
    assert_eq!(split_array("{a\\ }"), one("a "));
    assert_eq!(split_array("{a\\  }"), one("a "));
    assert_eq!(split_array("{\\ a }"), one(" a"));
    assert_eq!(split_array("{\\NULL}"), one("NULL"));
    assert_eq!(split_array("{a\u{a0}}"), one("a\u{a0}"));
    assert_eq!(split_array("{\u{a0}}"), one("\u{a0}"));
    assert_eq!(split_array("{a\u{b} }"), one("a"));
    assert_eq!(split_array("{\"\"}"), one(""));
    for malformed in [
        "{\"a\"b}",
        "{a\"b\"}",
        "{\"a\"\"b\"}",
        "{\"a\" \"b\"}",
        "{\"a\\",
        "\u{a0}{a}",
    ] {
        assert_eq!(split_array(malformed), None, "{malformed}");
    }
    assert_eq!(split_array("{{1},{2}}"), None);
    assert_eq!(split_array("1,2"), None);
    assert_eq!(split_array("{1,,2}"), None);
    assert_eq!(split_array("{1,}"), None);
}
