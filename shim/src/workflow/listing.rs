//! `pg_restore -l`, split by what must come before the copy and what after it. Pure.
//!
//! `pg_dump --section` is the wrong knife: primary keys are *post-data* there, but the apply worker
//! needs them for its first UPDATE. Foreign keys and triggers, though, must not exist while
//! rows come in table by table.

use std::collections::HashSet;

/// The lists for `pg_restore -L`, in the order in which they are restored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lists {
    /// Schemas: restored before the extensions are created, which may live in them.
    pub schemas: String,
    /// Restored before the copy.
    pub early: String,
    /// Restored after the copy, with the subscription disabled.
    pub late: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Schemas,
    Early,
    Late,
    Never,
}

/// Splits a listing. `early_indexes` holds `schema name` of the indexes that belong to a constraint
/// or are a replica identity.
pub fn split(listing: &str, early_indexes: &HashSet<String>) -> Lists {
    let mut lists = Lists::default();
    for line in listing.lines() {
        let Some(entry) = entry(line) else { continue };
        let list = match place(entry, early_indexes) {
            Place::Schemas => &mut lists.schemas,
            Place::Early => &mut lists.early,
            Place::Late => &mut lists.late,
            Place::Never => continue,
        };
        list.push_str(line);
        list.push('\n');
    }
    lists
}

/// What comes after `dump id; catalog oid object oid`: type, schema, name, owner.
fn entry(line: &str) -> Option<&str> {
    let (id, rest) = line.split_once(';')?;
    id.trim().parse::<u32>().ok()?;
    let mut parts = rest.trim_start().splitn(3, ' ');
    parts.next()?.parse::<u32>().ok()?;
    parts.next()?.parse::<u32>().ok()?;
    parts.next()
}

fn place(entry: &str, early_indexes: &HashSet<String>) -> Place {
    // Extensions are created before, in shard 0's versions; ours is there already.
    const NEVER: [&str; 8] = [
        "EXTENSION ",
        "SCHEMA - pgdog ",
        "PUBLICATION ",
        "SUBSCRIPTION ",
        "COMMENT - EXTENSION ",
        "COMMENT - PUBLICATION ",
        "COMMENT - SUBSCRIPTION ",
        "COMMENT - SCHEMA pgdog ",
    ];
    const LATE: [&str; 10] = [
        "FK CONSTRAINT ",
        "TRIGGER ",
        "RULE ",
        "POLICY ",
        "ROW SECURITY ",
        "STATISTICS ",
        "EVENT TRIGGER ",
        // A comment or label may sit on something late, so all of them wait.
        "COMMENT ",
        "SECURITY LABEL ",
        "REFRESH ",
    ];
    if NEVER.iter().any(|kind| entry.starts_with(kind)) {
        return Place::Never;
    }
    if entry.starts_with("SCHEMA ") {
        return Place::Schemas;
    }
    for kind in ["INDEX ATTACH ", "INDEX "] {
        if let Some(name) = entry.strip_prefix(kind) {
            let without_owner = name.rsplit_once(' ').map_or(name, |(name, _)| name);
            return match early_indexes.contains(without_owner) {
                true => Place::Early,
                false => Place::Late,
            };
        }
    }
    match LATE.iter().any(|kind| entry.starts_with(kind)) {
        true => Place::Late,
        false => Place::Early,
    }
}

/// Takes the `\restrict` and `\unrestrict` lines out of a script: they are for psql, we send the
/// script to the server. Only the very token of the first line is looked for, so a line of a
/// function body cannot be mistaken for one.
pub fn without_restrict(script: &str) -> String {
    let first = script
        .lines()
        .find_map(|line| line.strip_prefix("\\restrict "));
    let Some(token) = first else {
        return script.to_owned();
    };
    let (open, close) = (
        format!("\\restrict {token}"),
        format!("\\unrestrict {token}"),
    );
    let kept = script
        .lines()
        .filter(|line| *line != open && *line != close);
    let mut out = String::with_capacity(script.len());
    for line in kept {
        out.push_str(line);
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTING: &str = "\
;
; Archive created at 2026-11-30 07:00:00 UTC
;     dbname: app
;
; Selected TOC Entries:
;
2; 3079 16385 EXTENSION - citext 
3; 3079 16390 EXTENSION - pgdog 
3400; 0 0 COMMENT - EXTENSION pgdog 
6; 2615 2200 SCHEMA - shop app
215; 1259 16500 TABLE shop plans app
216; 1259 16510 TABLE shop ledger app
217; 0 0 TABLE ATTACH shop ledger_1 app
3300; 2604 16511 DEFAULT shop ledger id app
3310; 2606 16520 CONSTRAINT shop plans plans_pkey app
3311; 1259 16521 INDEX shop plans_name_idx app
3312; 1259 16522 INDEX shop ledger_identity app
3313; 0 0 INDEX ATTACH shop ledger_1_pkey app
3314; 0 0 INDEX ATTACH shop ledger_1_at_idx app
3320; 2606 16530 FK CONSTRAINT shop ledger ledger_plan_fkey app
3321; 2620 16531 TRIGGER shop plans audit app
3322; 6104 16532 PUBLICATION - app_pub app
3323; 6106 16533 PUBLICATION TABLE shop app_pub plans app
3324; 0 0 ROW SECURITY shop plans app
3325; 3256 16534 POLICY shop plans only_own app
3326; 0 0 ACL shop TABLE plans app
3327; 0 0 COMMENT shop INDEX plans_name_idx app
3328; 6100 16535 SUBSCRIPTION - s app
";

    fn early_indexes() -> HashSet<String> {
        ["shop ledger_identity", "shop ledger_1_pkey"]
            .map(str::to_owned)
            .into()
    }

    fn ids(list: &str) -> Vec<u32> {
        list.lines()
            .map(|line| line.split_once(';').unwrap().0.parse().unwrap())
            .collect()
    }

    #[test]
    fn keys_come_before_the_copy_and_triggers_after_it() {
        let lists = split(LISTING, &early_indexes());
        assert_eq!(ids(&lists.schemas), [6]);
        assert_eq!(
            ids(&lists.early),
            [215, 216, 217, 3300, 3310, 3312, 3313, 3326]
        );
        assert_eq!(ids(&lists.late), [3311, 3314, 3320, 3321, 3324, 3325, 3327]);
    }

    #[test]
    fn psql_lines_go_and_look_alikes_stay() {
        let script = "\\restrict Abc\nSELECT $$\n\\unrestrict Xyz\n$$;\n\\unrestrict Abc\n";
        assert_eq!(
            without_restrict(script),
            "SELECT $$\n\\unrestrict Xyz\n$$;\n"
        );
        assert_eq!(without_restrict("SELECT 1;\n"), "SELECT 1;\n");
    }
}
