//! One claim of `choose` each.

use super::*;

fn life(name: &str) -> Incarnation {
    Incarnation(name.to_owned())
}

fn replica(connected: &str, sampled: &str, replayed: u64) -> Candidate {
    Candidate {
        connected: Some(life(connected)),
        sample: Some(Sample {
            incarnation: life(sampled),
            timeline: Some(Timeline(1)),
            replayed: Some(Lsn(replayed)),
            rate: None,
            lag_ms: None,
            age_ms: 0,
        }),
    }
}

fn with_rate(mut candidate: Candidate, rate: u64) -> Candidate {
    if let Some(sample) = &mut candidate.sample {
        sample.rate = Some(rate);
    }
    candidate
}

fn on_timeline(mut candidate: Candidate, timeline: u32) -> Candidate {
    if let Some(sample) = &mut candidate.sample {
        sample.timeline = Some(Timeline(timeline));
    }
    candidate
}

fn choose_at(floor: u64, budget_ms: u64, candidates: &[Candidate]) -> Decision {
    let lineage = Lineage {
        current: Some(Timeline(1)),
        forks: Vec::new(),
    };
    let fallback = Fallback::Refuse;
    choose(
        candidates,
        &Ask {
            floor: (Lsn(floor), None),
            lineage: &lineage,
            budget_ms,
            fallback,
        },
    )
}

/// After a failover at 100 from timeline 1 to 2.
fn choose_after_failover(floor: Position, candidates: &[Candidate]) -> Decision {
    let forks = vec![Fork {
        timeline: Timeline(1),
        ended_at: Lsn(100),
    }];
    let lineage = Lineage {
        current: Some(Timeline(2)),
        forks,
    };
    choose(
        candidates,
        &Ask {
            floor,
            lineage: &lineage,
            budget_ms: 50,
            fallback: Fallback::Refuse,
        },
    )
}

#[test]
fn a_sample_of_the_same_life_proves_the_floor() {
    assert_eq!(
        choose_at(100, 0, &[replica("a", "a", 99), replica("b", "b", 100)]),
        { Decision::Serve(1) }
    );
}

#[test]
fn the_callers_order_decides_among_the_proved() {
    let both = [replica("a", "a", 100), replica("b", "b", 500)];
    assert_eq!(choose_at(100, 50, &both), Decision::Serve(0));
}

#[test]
fn a_sample_of_another_life_proves_nothing_but_is_worth_a_guard() {
    let restarted = [replica("new", "old", 900)];
    assert_eq!(
        choose_at(100, 50, &restarted),
        Decision::Guard {
            candidate: 0,
            budget_ms: 50
        }
    );
    let refused = Decision::NotCaughtUp {
        eta_ms: Some(0),
        best: Some(Lsn(900)),
    };
    assert_eq!(choose_at(100, 0, &restarted), refused);
}

#[test]
fn no_connection_yet_is_not_proved() {
    let unconnected = Candidate {
        connected: None,
        ..replica("a", "a", 900)
    };
    assert_eq!(
        choose_at(100, 7, &[unconnected]),
        Decision::Guard {
            candidate: 0,
            budget_ms: 7
        }
    );
}

#[test]
fn a_null_position_never_qualifies() {
    let mut null = replica("a", "a", 0);
    null.sample.as_mut().unwrap().replayed = None;
    assert_eq!(
        choose_at(0, 50, &[null.clone()]),
        Decision::Wait { eta_ms: 10 }
    );
    let refused = Decision::NotCaughtUp {
        eta_ms: None,
        best: None,
    };
    assert_eq!(choose_at(0, 0, &[null]), refused);
}

#[test]
fn the_soonest_replica_is_guarded() {
    let slow = with_rate(replica("a", "a", 0), 10_000);
    let fast = with_rate(replica("b", "b", 0), 100_000);
    assert_eq!(choose_at(1000, 200, &[slow, fast]), {
        Decision::Guard {
            candidate: 1,
            budget_ms: 200,
        }
    });
}

#[test]
fn a_measured_eta_beyond_the_budget_is_refused_at_once_with_that_eta() {
    let slow = with_rate(replica("a", "a", 0), 1000);
    let refused = Decision::NotCaughtUp {
        eta_ms: Some(10_000),
        best: Some(Lsn(0)),
    };
    assert_eq!(choose_at(10_000, 100, &[slow]), refused);
}

#[test]
fn a_burst_before_a_replica_that_keeps_up_is_no_reason_to_refuse() {
    let mut steady = with_rate(replica("a", "a", 0), 1000);
    let guard = Decision::Guard {
        candidate: 0,
        budget_ms: 100,
    };
    for (lag_ms, is_late) in [(20, false), (100, false), (101, true)] {
        steady.sample.as_mut().unwrap().lag_ms = Some(lag_ms);
        let decision = choose_at(10_000, 100, &[steady.clone()]);
        assert_eq!(decision != guard, is_late, "{lag_ms}: {decision:?}");
    }
}

#[test]
fn an_estimate_that_is_only_a_little_too_long_is_no_reason_to_refuse() {
    let slow = with_rate(replica("a", "a", 0), 1000);
    let guard = Decision::Guard {
        candidate: 0,
        budget_ms: 100,
    };
    assert_eq!(choose_at(900, 100, &[slow]), guard);
}

#[test]
fn a_sample_s_age_counts_towards_the_eta() {
    let mut aged = with_rate(replica("a", "a", 0), 1000);
    aged.sample.as_mut().unwrap().age_ms = 150;
    assert_eq!(
        choose_at(200, 100, &[aged]),
        Decision::Guard {
            candidate: 0,
            budget_ms: 100
        }
    );
}

#[test]
fn an_unmeasured_replica_is_tried_before_one_that_is_measured_to_be_too_slow() {
    let slow = with_rate(replica("a", "a", 90), 1);
    let unknown = replica("b", "b", 0);
    assert_eq!(choose_at(100, 20, &[slow, unknown]), {
        Decision::Guard {
            candidate: 1,
            budget_ms: 20,
        }
    });
}

#[test]
fn a_lag_of_hours_on_an_idle_cluster_is_no_reason_to_refuse() {
    let mut idle = replica("a", "a", 0);
    idle.sample.as_mut().unwrap().lag_ms = Some(3_600_000);
    let guard = Decision::Guard {
        candidate: 0,
        budget_ms: 50,
    };
    assert_eq!(choose_at(100, 50, &[idle.clone()]), guard);
    let refused = Decision::NotCaughtUp {
        eta_ms: Some(3_600_000),
        best: Some(Lsn(0)),
    };
    assert_eq!(choose_at(100, 0, &[idle]), refused);
}

#[test]
fn nobody_there_waits_then_falls_back_or_refuses() {
    assert_eq!(choose_at(100, 4, &[]), Decision::Wait { eta_ms: 4 });
    assert_eq!(
        choose_at(100, 0, &[]),
        Decision::NotCaughtUp {
            eta_ms: None,
            best: None
        }
    );
    let lineage = Lineage::default();
    let (floor, fallback) = ((Lsn(1), None), Fallback::Primary);
    let ask = Ask {
        floor,
        lineage: &lineage,
        budget_ms: 0,
        fallback,
    };
    assert_eq!(choose(&[], &ask), Decision::Primary);
}

#[test]
fn the_wrong_timeline_does_not_qualify_beyond_the_fork() {
    let diverged = replica("a", "a", 500);
    let follower = on_timeline(replica("b", "b", 150), 2);
    let floor = (Lsn(150), Some(Timeline(2)));
    assert_eq!(
        choose_after_failover(floor, std::slice::from_ref(&diverged)),
        { Decision::Wait { eta_ms: 10 } }
    );
    assert_eq!(
        choose_after_failover(floor, &[diverged, follower]),
        Decision::Serve(1)
    );
}

#[test]
fn a_replica_before_the_fork_still_serves_what_both_have() {
    let floor = (Lsn(80), Some(Timeline(1)));
    assert_eq!(
        choose_after_failover(floor, &[replica("a", "a", 90)]),
        Decision::Serve(0)
    );
    // Beyond the fork on its own it has rows that do not exist any more.
    assert_eq!(choose_after_failover(floor, &[replica("a", "a", 101)]), {
        Decision::Wait { eta_ms: 10 }
    });
}

#[test]
fn a_floor_behind_the_fork_of_its_timeline_is_lost() {
    let lost = Decision::Lost {
        timeline: Timeline(2),
        forked_at: Lsn(100),
    };
    let everywhere = [
        replica("a", "a", 500),
        on_timeline(replica("b", "b", 500), 2),
    ];
    assert_eq!(
        choose_after_failover((Lsn(101), Some(Timeline(1))), &everywhere),
        lost
    );
    assert_eq!(
        choose_after_failover((Lsn(100), Some(Timeline(1))), &everywhere),
        { Decision::Serve(1) }
    );
}

#[test]
fn a_token_of_a_later_timeline_is_news_about_a_failover() {
    let lineage = Lineage {
        current: Some(Timeline(1)),
        forks: Vec::new(),
    };
    let floor = (Lsn(100), Some(Timeline(2)));
    let ask = Ask {
        floor,
        lineage: &lineage,
        budget_ms: 0,
        fallback: Fallback::Refuse,
    };
    let old = replica("a", "a", 500);
    assert!(matches!(choose(&[old], &ask), Decision::NotCaughtUp { .. }));
    let new = on_timeline(replica("a", "a", 500), 2);
    assert_eq!(choose(&[new], &ask), Decision::Serve(0));
}

#[test]
fn a_floor_of_an_unknown_history_is_not_even_read_from_the_primary() {
    let lineage = Lineage {
        current: Some(Timeline(3)),
        forks: Vec::new(),
    };
    let floor = (Lsn(100), Some(Timeline(2)));
    let ask = Ask {
        floor,
        lineage: &lineage,
        budget_ms: 0,
        fallback: Fallback::Primary,
    };
    let refused = Decision::NotCaughtUp {
        eta_ms: Some(0),
        best: Some(Lsn(500)),
    };
    assert_eq!(choose(&[replica("a", "a", 500)], &ask), refused);
}

/// Timeline 2 left timeline 1 at 100; that says nothing about where timeline 3 left it.
#[test]
fn forks_of_an_older_history_say_nothing_about_a_later_timeline() {
    let floor = (Lsn(50), Some(Timeline(3)));
    let decision = choose_after_failover(floor, &[replica("a", "a", 90)]);
    assert_eq!(decision, Decision::Wait { eta_ms: 10 });
}

#[test]
fn of_several_floors_the_one_that_implies_the_others_decides() {
    let lineage = Lineage {
        current: Some(Timeline(2)),
        forks: vec![Fork {
            timeline: Timeline(1),
            ended_at: Lsn(100),
        }],
    };
    let old = |lsn| (Lsn(lsn), Some(Timeline(1)));
    let new = |lsn| (Lsn(lsn), Some(Timeline(2)));
    let bare = |lsn| (Lsn(lsn), None);
    let next = |lsn| (Lsn(lsn), Some(Timeline(3)));
    for (floors, decides) in [
        (vec![], None),
        (vec![bare(7)], Some(bare(7))),
        (vec![new(120), bare(500)], Some(bare(500))),
        (vec![old(90), new(120)], Some(new(120))),
        // Lost, whatever else is asked for.
        (vec![old(101), new(120)], Some(old(101))),
        (vec![new(900), next(10)], Some(next(10))),
    ] {
        assert_eq!(strictest(floors.clone(), &lineage), decides, "{floors:?}");
    }
}
