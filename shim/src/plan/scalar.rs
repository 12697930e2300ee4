//! Functions of PostgreSQL that look at one row only, by name.
//!
//! A read over several shards may call these and no others: a name that is not here may be an
//! aggregate, or a function that reads rows of its own.

/// Whether a function surely looks at its arguments only.
pub(super) fn is_scalar(name: &str) -> bool {
    NAMES.binary_search(&name).is_ok()
}

/// Whether every row gets another value anyway, on one server as on several.
pub(super) fn is_drawn(name: &str) -> bool {
    matches!(
        name,
        "clock_timestamp" | "gen_random_uuid" | "random" | "timeofday"
    )
}

/// Whether its value is the time, by the clock of each server.
pub(super) fn is_clock(name: &str) -> bool {
    matches!(
        name,
        "now"
            | "clock_timestamp"
            | "transaction_timestamp"
            | "statement_timestamp"
            | "CURRENT_DATE"
            | "CURRENT_TIME"
            | "CURRENT_TIMESTAMP"
            | "LOCALTIME"
            | "LOCALTIMESTAMP"
            | "'now'"
            | "'today'"
            | "'tomorrow'"
            | "'yesterday'"
    )
}

/// Aggregates of which a result is made from results of parts.
pub(super) fn is_mergeable(name: &str) -> bool {
    matches!(
        name,
        "count"
            | "sum"
            | "avg"
            | "min"
            | "max"
            | "bool_and"
            | "bool_or"
            | "every"
            | "bit_and"
            | "bit_or"
            | "bit_xor"
    )
}

/// In the order of bytes.
#[rustfmt::skip]
const NAMES: [&str; 250] = [
    "abs", "acos", "acosd", "acosh", "array_append", "array_cat", "array_dims", "array_fill",
    "array_length", "array_lower", "array_ndims", "array_position", "array_positions",
    "array_prepend", "array_remove", "array_replace", "array_to_json", "array_to_string",
    "array_upper", "ascii", "asin", "asind", "asinh", "atan", "atan2", "atan2d", "atand", "atanh",
    "bit_count", "bit_length", "bool", "btrim", "cardinality", "cbrt", "ceil", "ceiling",
    "char_length", "character_length", "chr", "clock_timestamp", "concat", "concat_ws", "convert",
    "convert_from", "convert_to", "cos", "cosd", "cosh", "cot", "cotd", "current_setting", "date",
    "date_bin", "date_part", "date_trunc", "daterange", "decode", "degrees", "div", "encode",
    "enum_first", "enum_last", "enum_range", "exp", "extract", "factorial", "family", "float4",
    "float8", "floor", "format", "gcd", "gen_random_uuid", "generate_series",
    "generate_subscripts", "get_bit", "get_byte", "host", "hostmask", "initcap", "int2", "int4",
    "int4multirange", "int4range", "int8", "int8multirange", "int8range", "is_normalized",
    "isempty", "isfinite", "json_array_element", "json_array_element_text", "json_array_elements",
    "json_array_elements_text", "json_array_length", "json_build_array", "json_build_object",
    "json_each", "json_each_text", "json_extract_path", "json_extract_path_text", "json_object",
    "json_object_keys", "json_strip_nulls", "json_typeof", "jsonb_array_elements",
    "jsonb_array_elements_text", "jsonb_array_length", "jsonb_build_array", "jsonb_build_object",
    "jsonb_each", "jsonb_each_text", "jsonb_extract_path", "jsonb_extract_path_text",
    "jsonb_insert", "jsonb_object", "jsonb_object_keys", "jsonb_path_exists", "jsonb_path_match",
    "jsonb_path_query", "jsonb_path_query_array", "jsonb_path_query_first", "jsonb_pretty",
    "jsonb_set", "jsonb_set_lax", "jsonb_strip_nulls", "jsonb_typeof", "justify_days",
    "justify_hours", "justify_interval", "lcm", "left", "length", "like_escape", "ln", "log",
    "log10", "lower", "lower_inc", "lower_inf", "lpad", "ltrim", "make_date", "make_interval",
    "make_time", "make_timestamp", "make_timestamptz", "masklen", "md5", "min_scale", "mod",
    "multirange", "netmask", "network", "normalize", "now", "num_nonnulls", "num_nulls",
    "numeric", "numrange", "octet_length", "overlaps", "overlay", "parse_ident",
    "phraseto_tsquery", "pi", "plainto_tsquery", "position", "pow", "power", "quote_ident",
    "quote_literal", "quote_nullable", "radians", "random", "range_merge", "regexp_count",
    "regexp_instr", "regexp_like", "regexp_match", "regexp_matches", "regexp_replace",
    "regexp_split_to_array", "regexp_split_to_table", "regexp_substr", "repeat", "replace",
    "reverse", "right", "round", "row_to_json", "rpad", "rtrim", "scale", "setweight", "sha224",
    "sha256", "sha384", "sha512", "sign", "similar_to_escape", "sin", "sind", "sinh",
    "split_part", "sqrt", "starts_with", "statement_timestamp", "string_to_array",
    "string_to_table", "strip", "strpos", "substr", "substring", "tan", "tand", "tanh", "text",
    "timeofday", "timestamp", "timestamptz", "timezone", "to_char", "to_date", "to_hex",
    "to_json", "to_jsonb", "to_number", "to_timestamp", "to_tsquery", "to_tsvector",
    "transaction_timestamp", "translate", "trim_array", "trim_scale", "trunc", "ts_delete",
    "ts_filter", "ts_headline", "ts_rank", "ts_rank_cd", "tsrange", "tstzrange", "unistr",
    "unnest", "upper", "upper_inc", "upper_inf", "websearch_to_tsquery", "width_bucket",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_in_order_and_none_is_an_aggregate() {
        assert!(NAMES.is_sorted());
        assert!(is_scalar("lower") && is_scalar("date_trunc") && is_scalar("jsonb_extract_path"));
        for name in ["sum", "string_agg", "row_number", "nextval", "my_function"] {
            assert!(!is_scalar(name), "{name}");
        }
    }
}
