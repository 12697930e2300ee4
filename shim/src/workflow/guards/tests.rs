use super::super::facts::{NodeFacts, Published, TableFacts};
use super::*;

fn node(system_identifier: &str) -> NodeFacts {
    NodeFacts {
        version: 150_020,
        wal_level: "logical".into(),
        slots: (10, 0),
        senders: (10, 1),
        prepared_limit: 50,
        sync_workers: 2,
        replication_workers: 4,
        superuser: true,
        preloaded: true,
        system_identifier: system_identifier.into(),
        timeline: 1,
        state: Some("serving".into()),
        extensions: [("pgdog".to_owned(), "0.1.0".to_owned())].into(),
        available: ["pgdog 0.1.0".to_owned()].into(),
        roles: ["app".to_owned()].into(),
        ..NodeFacts::default()
    }
}

fn good() -> Facts {
    Facts {
        shard: 2,
        serving: 2,
        source: node("1"),
        target: NodeFacts {
            state: None,
            extensions: [].into(),
            ..node("2")
        },
        prepared_limits: vec![50, 50],
        tables: vec![TableFacts {
            schema: "public".into(),
            name: "plans".into(),
            unlogged: false,
            has_identity: true,
            rows: 5,
            bytes: 8192,
        }],
        drift: Ok(Vec::new()),
        ..Facts::default()
    }
}

/// A publication of all that there is, but for one thing.
fn published(damage: fn(&mut Published)) -> Option<(String, Option<Published>)> {
    let mut sound = Published {
        whole: ["public.plans".to_owned()].into(),
        in_part: [].into(),
        every_change: true,
    };
    damage(&mut sound);
    Some(("p".into(), Some(sound)))
}

fn failed(facts: &Facts) -> Vec<&'static str> {
    let findings = check(facts);
    let failed = findings.iter().filter(|f| f.verdict == Verdict::Fail);
    failed.map(|finding| finding.guard).collect()
}

#[test]
fn a_sound_cluster_passes_every_guard() {
    assert_eq!(failed(&good()), Vec::<&str>::new());
    assert_eq!(blockers(&check(&good())), None);
}

#[test]
fn every_guard_fails_on_its_own_fact() {
    type Damage = fn(&mut Facts);
    let cases: Vec<(&str, Damage)> = vec![
        ("next number", |f| f.shard = 3),
        ("primaries", |f| f.target.in_recovery = true),
        ("own server", |f| f.target.system_identifier = "1".into()),
        ("superuser", |f| f.target.superuser = false),
        ("empty target", |f| {
            f.target_contents = vec!["relation a".into()]
        }),
        ("target state", |f| f.target.state = Some("serving".into())),
        ("same major version", |f| f.target.version = 180_001),
        ("same locale", |f| f.target.locale.1 = "C".into()),
        ("extensions available", |f| f.target.available.clear()),
        ("extension versions", |f| {
            f.target.extensions.insert("pgdog".into(), "0.0.9".into());
        }),
        ("preloaded", |f| f.target.preloaded = false),
        ("roles present", |f| f.target.roles.clear()),
        ("wal_level", |f| f.source.wal_level = "replica".into()),
        ("replication slots", |f| f.source.slots = (10, 8)),
        ("WAL senders", |f| f.source.senders = (3, 1)),
        ("replication workers", |f| f.target.replication_workers = 2),
        ("two-phase commit", |f| f.prepared_limits[1] = 0),
        ("same configuration", |f| {
            f.differing_instances = vec!["a (a:1, 0.1.0+1)".into()]
        }),
        ("publication", |f| {
            f.publication = published(|p| p.whole.clear())
        }),
        ("publication of omni tables", |f| {
            f.publication = published(|p| _ = p.whole.insert("public.orders".into()));
        }),
        ("publication of whole tables", |f| {
            f.publication = published(|p| p.in_part = std::mem::take(&mut p.whole));
        }),
        ("publication of every change", |f| {
            f.publication = published(|p| p.every_change = false);
        }),
        ("stable placement", |f| {
            f.hash_routed = vec!["public.orders".into()]
        }),
        ("omni tables exist", |f| {
            f.missing_tables = vec!["public.gone".into()]
        }),
        ("replica identity", |f| f.tables[0].has_identity = false),
        ("logged", |f| f.tables[0].unlogged = true),
        ("foreign keys", |f| {
            f.foreign_keys_out = vec!["plans -> orders".into()]
        }),
        ("maps", |f| f.paused_maps = vec!["tenants".into()]),
        ("shards agree", |f| {
            f.drift = Ok(vec!["public.plans".into()])
        }),
        ("prepared transactions", |f| {
            f.prepared = vec![("g".into(), "d".into(), 99.0)]
        }),
        ("long transactions", |f| {
            f.oldest_transaction = Some(("pid 1".into(), 99.0))
        }),
    ];
    for (guard, damage) in cases {
        let mut facts = good();
        damage(&mut facts);
        assert_eq!(failed(&facts), [guard]);
    }
}

#[test]
fn all_findings_come_at_once_each_with_a_remedy() {
    let mut facts = good();
    facts.source.wal_level = "replica".into();
    facts.hash_routed = vec!["public.orders".into()];
    let text = blockers(&check(&facts)).unwrap();
    assert!(
        text.contains("wal_level = logical") && text.contains("public.orders"),
        "{text}"
    );
}

#[test]
fn a_transaction_in_flight_is_no_orphan() {
    let mut facts = good();
    facts.prepared = vec![("pgdog_prod_1_1_1".into(), "d".into(), 0.05)];
    assert_eq!(failed(&facts), Vec::<&str>::new());
}
