//! Types of columns, as far as merging has to know them.

/// One column of what the shards have found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// `pg_type.oid` of its type.
    pub type_oid: u32,
    /// `pg_type.oid` of arrays of it.
    pub array_oid: u32,
}

/// `bigint`.
pub(super) const INT8: u32 = 20;
/// `real`.
pub(super) const FLOAT4: u32 = 700;
/// `double precision`.
pub(super) const FLOAT8: u32 = 701;
/// `money`.
pub(super) const MONEY: u32 = 790;
/// `interval`.
pub(super) const INTERVAL: u32 = 1186;
/// `numeric`.
pub(super) const NUMERIC: u32 = 1700;

/// The array type of a type that PostgreSQL brings; none when a server must be asked.
pub fn array_type(type_oid: u32) -> Option<u32> {
    const KNOWN: [(u32, u32); 33] = [
        (16, 1000),
        (17, 1001),
        (18, 1002),
        (19, 1003),
        (20, 1016),
        (21, 1005),
        (23, 1007),
        (25, 1009),
        (26, 1028),
        (114, 199),
        (142, 143),
        (600, 1017),
        (650, 651),
        (700, 1021),
        (701, 1022),
        (774, 775),
        (790, 791),
        (829, 1040),
        (869, 1041),
        (1042, 1014),
        (1043, 1015),
        (1082, 1182),
        (1083, 1183),
        (1114, 1115),
        (1184, 1185),
        (1186, 1187),
        (1266, 1270),
        (1560, 1561),
        (1562, 1563),
        (1700, 1231),
        (2950, 2951),
        (3220, 3221),
        (3802, 3807),
    ];
    let known = KNOWN.binary_search_by_key(&type_oid, |(element, _)| *element);
    known.ok().map(|at| KNOWN[at].1)
}
