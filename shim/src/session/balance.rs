//! Which of the nodes that may answer a read is to answer it, and who comes after it.
//!
//! Turns are kept as credits: of every read each node that could have taken it earns its part, by
//! weight, and the one that takes it pays for the whole. So shares follow the weights whatever
//! nodes a read had to choose from, and no node is taken several times in a row for having a large
//! weight.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::Session;
use super::settings::Balancing;
use crate::nodes::Address;

/// What a read is worth: divisible by most sums of weights, so that parts are exact.
const READ: i64 = 18_018_000;

/// What a node may have earned, or owe, at most: who comes back after a long time catches up on so
/// much, and is not left alone with all reads for as long as it was away.
const MOST: i64 = 100 * READ;

/// The part of a read that a node earns, of so much weight in all.
fn part(weight: u8, all: i64) -> i64 {
    READ * i64::from(weight) / all.max(1)
}

/// What is known of a node that could take a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Standing {
    /// Its share; 0: only when there is no other.
    weight: u8,
    /// Connections to it that are lent.
    lent: usize,
    /// What it has earned and not been paid yet.
    credit: i64,
}

/// The nodes by preference; `draw` gives a number below the one it is given.
fn order(
    strategy: Balancing,
    nodes: &[Standing],
    mut draw: impl FnMut(usize) -> usize,
) -> Vec<usize> {
    let mut order: Vec<usize> = (0..nodes.len()).collect();
    let all = nodes.iter().map(|node| i64::from(node.weight)).sum();
    let due = |at: &usize| Reverse(nodes[*at].credit + part(nodes[*at].weight, all));
    match strategy {
        Balancing::Random => {
            for last in (1..order.len()).rev() {
                order.swap(last, draw(last + 1));
            }
        }
        Balancing::RoundRobin => order.sort_by_key(due),
        Balancing::Weighted => order.sort_by_key(|at| (nodes[*at].weight == 0, due(at))),
        Balancing::LeastActive => order.sort_by_key(|at| (nodes[*at].lent, due(at))),
    }
    order
}

/// Whose turn it is, for all sessions.
#[derive(Debug, Default)]
pub struct Balancer {
    credits: Mutex<Credits>,
}

#[derive(Debug, Default)]
struct Credits {
    of: HashMap<Address, i64>,
    /// By whose weights they were earned.
    strategy: Option<Balancing>,
}

impl Balancer {
    fn credit(&self, address: &Address) -> i64 {
        self.lock().of.get(address).copied().unwrap_or_default()
    }

    /// One of these nodes, with their weights, takes a read.
    fn charge(&self, strategy: Balancing, nodes: &[(&Address, u8)], chosen: usize) {
        let all = nodes.iter().map(|(_, weight)| i64::from(*weight)).sum();
        let whole: i64 = nodes.iter().map(|(_, weight)| part(*weight, all)).sum();
        let mut credits = self.lock();
        if credits.strategy != Some(strategy) {
            credits.strategy = Some(strategy);
            credits.of.clear();
        }
        for (at, (address, weight)) in nodes.iter().enumerate() {
            if !credits.of.contains_key(*address) {
                credits.of.insert((*address).clone(), 0);
            }
            if let Some(credit) = credits.of.get_mut(*address) {
                let paid = if at == chosen { whole } else { 0 };
                *credit = (*credit + part(*weight, all) - paid).clamp(-MOST, MOST);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Credits> {
        self.credits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session<'_> {
    /// These nodes, the one that is to be asked first at the front.
    pub(super) fn in_order<T>(
        &mut self,
        nodes: Vec<T>,
        address: impl Fn(&T) -> &Address,
    ) -> Vec<T> {
        if nodes.len() < 2 {
            return nodes;
        }
        let strategy = self.settings.balancing;
        let mut standings = Vec::with_capacity(nodes.len());
        for node in &nodes {
            let address = address(node);
            standings.push(Standing {
                weight: self.weight_of(address),
                lent: match strategy {
                    Balancing::LeastActive => self.pool_of(address).1.lent(),
                    Balancing::Random | Balancing::RoundRobin | Balancing::Weighted => 0,
                },
                credit: match strategy {
                    Balancing::Random => 0,
                    _ => self.services.balancer.credit(address),
                },
            });
        }
        let order = order(strategy, &standings, |below| rand::random_range(0..below));
        let mut nodes: Vec<Option<T>> = nodes.into_iter().map(Some).collect();
        let taken = order.into_iter().map(|at| nodes[at].take());
        taken.flatten().collect()
    }

    /// One of these nodes takes a read.
    pub(super) fn charge<'n>(&self, (nodes, chosen): (impl Iterator<Item = &'n Address>, usize)) {
        let strategy = self.settings.balancing;
        if strategy == Balancing::Random {
            return;
        }
        let nodes: Vec<_> = nodes
            .map(|address| (address, self.weight_of(address)))
            .collect();
        self.services.balancer.charge(strategy, &nodes, chosen);
    }

    fn weight_of(&self, address: &Address) -> u8 {
        match self.settings.balancing {
            Balancing::Weighted => self.cluster.settings().weight_of(address),
            Balancing::Random | Balancing::RoundRobin | Balancing::LeastActive => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> Address {
        Address {
            host: "h".to_owned(),
            port,
            database: "d".to_owned(),
        }
    }

    /// How many of `reads` each node takes.
    fn shares(strategy: Balancing, nodes: &[(u8, usize)], reads: usize) -> Vec<usize> {
        let balancer = Balancer::default();
        let addresses: Vec<_> = (0..nodes.len()).map(|at| address(at as u16)).collect();
        let mut taken = vec![0; nodes.len()];
        for read in 0..reads {
            let standings: Vec<_> = nodes
                .iter()
                .zip(&addresses)
                .map(|((weight, lent), address)| Standing {
                    weight: *weight,
                    lent: *lent,
                    credit: balancer.credit(address),
                })
                .collect();
            let chosen = order(strategy, &standings, |below| read % below)[0];
            let weights = nodes.iter().map(|(weight, _)| *weight);
            let all: Vec<_> = addresses.iter().zip(weights).collect();
            balancer.charge(strategy, &all, chosen);
            taken[chosen] += 1;
        }
        taken
    }

    #[test]
    fn round_robin_takes_one_after_the_other() {
        let nodes = [(1, 9), (1, 0), (1, 5)];
        assert_eq!(shares(Balancing::RoundRobin, &nodes, 300), [100, 100, 100]);
        assert_eq!(shares(Balancing::RoundRobin, &nodes, 4), [2, 1, 1]);
    }

    #[test]
    fn shares_follow_the_weights_and_zero_is_only_there_in_need() {
        let nodes = [(200, 0), (50, 0), (0, 0)];
        assert_eq!(shares(Balancing::Weighted, &nodes, 500), [400, 100, 0]);
        let in_turn = shares(Balancing::Weighted, &[(4, 0), (1, 0)], 5);
        assert_eq!(in_turn, [4, 1], "the small one is not put off");
        let standing = |weight| Standing {
            weight,
            lent: 0,
            credit: 0,
        };
        let all: Vec<_> = [0, 7, 0].map(standing).to_vec();
        assert_eq!(order(Balancing::Weighted, &all, |_| 0), [1, 0, 2]);
    }

    #[test]
    fn the_least_busy_comes_first_and_equals_take_turns() {
        let nodes = [(1, 3), (1, 1), (1, 1)];
        assert_eq!(shares(Balancing::LeastActive, &nodes, 10), [0, 5, 5]);
    }

    #[test]
    fn a_random_order_has_everybody_once() {
        let standing = Standing {
            weight: 1,
            lent: 0,
            credit: 0,
        };
        let mut seen = [0; 4];
        for seed in 0..24 {
            let mut digits = seed;
            let order = order(Balancing::Random, &[standing; 4], |below| {
                let digit = digits % below;
                digits /= below;
                digit
            });
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            seen[order[0]] += 1;
        }
        assert_eq!(seen, [6; 4], "every permutation once");
    }

    /// Nodes of equal weight take a read in turn.
    fn turn(balancer: &Balancer, present: &[&Address]) -> usize {
        let standings: Vec<_> = present
            .iter()
            .map(|address| Standing {
                weight: 1,
                lent: 0,
                credit: balancer.credit(address),
            })
            .collect();
        let chosen = order(Balancing::RoundRobin, &standings, |_| 0)[0];
        let all: Vec<_> = present.iter().map(|address| (*address, 1)).collect();
        balancer.charge(Balancing::RoundRobin, &all, chosen);
        chosen
    }

    #[test]
    fn turns_even_out_whoever_was_away() {
        let balancer = Balancer::default();
        let [a, b, c] = [1, 2, 3].map(address);
        let mut taken = [0; 3];
        for read in 0..600 {
            // The third one cannot take every second read.
            let all = [&a, &b, &c];
            taken[turn(&balancer, &all[..2 + read % 2])] += 1;
        }
        // 300 reads of two and 300 of three.
        let [a, b, c] = taken;
        let near = |count: i32, due: i32| (count - due).abs() <= 2;
        assert!(near(a, 250) && near(b, 250) && near(c, 100), "{taken:?}");
    }

    #[test]
    fn who_could_not_take_its_turns_for_long_catches_up_on_some() {
        let balancer = Balancer::default();
        let [a, b, c] = [1, 2, 3].map(address);
        let all = [(&a, 1), (&b, 1), (&c, 1)];
        // It earns its part, and is asked in vain: the others take its turns.
        for read in 0..100_000 {
            balancer.charge(Balancing::RoundRobin, &all, read % 2);
        }
        let mut taken = [0_i32; 3];
        for _ in 0..300 {
            taken[turn(&balancer, &[&a, &b, &c])] += 1;
        }
        let [a, b, c] = taken;
        assert!(a > 0 && b > 0 && (100..300).contains(&c), "{taken:?}");
        // From then on all are equal.
        let mut taken = [0; 3];
        let nodes = [1, 2, 3].map(address);
        for _ in 0..300 {
            let present: Vec<_> = nodes.iter().collect();
            taken[turn(&balancer, &present)] += 1;
        }
        assert_eq!(taken, [100; 3]);
    }
}
