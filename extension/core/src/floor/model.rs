//! A small world for `choose`: a primary and standbys that restart, are re-cloned behind the same
//! address, follow a promotion or miss it; samples that come late, twice or in the wrong order.
//! Whatever the schedule, no read is answered by a server that lacks the write of its token.

use proptest::prelude::*;

use super::*;

const SERVERS: usize = 3;

/// WAL written on one timeline, and where it branched off its parent.
#[derive(Debug, Clone, Copy)]
struct Branch {
    parent: usize,
    forked_at: Lsn,
    end: Lsn,
}

/// One address. What is behind it may be replaced as a whole.
#[derive(Debug, Clone)]
struct Server {
    life: u32,
    branch: usize,
    replayed: Lsn,
    /// False from a start until replay has a position.
    up: bool,
}

#[derive(Debug, Clone)]
struct World {
    /// Index = timeline - 1.
    branches: Vec<Branch>,
    /// The timeline that takes writes.
    current: usize,
    servers: Vec<Server>,
    /// Samples that have been taken but not yet delivered: (address, sample).
    wire: Vec<(usize, Sample)>,
    /// What the shim knows.
    lineage: Lineage,
    candidates: Vec<Candidate>,
    /// Tokens that commits returned.
    tokens: Vec<(Lsn, Timeline)>,
    lives: u32,
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum Happening {
    Write {
        bytes: u64,
    },
    Replay {
        server: usize,
        bytes: u64,
    },
    Restart {
        server: usize,
        lost: u64,
    },
    Reclone {
        server: usize,
        from: usize,
    },
    Promote {
        server: usize,
    },
    Follow {
        server: usize,
    },
    Rewind {
        server: usize,
    },
    Probe {
        server: usize,
    },
    Deliver {
        nth: usize,
        keep: bool,
    },
    Connect {
        server: usize,
    },
    Disconnect {
        server: usize,
    },
    LearnLineage {
        with_forks: bool,
    },
    Read {
        token: usize,
        bare: bool,
        budget_ms: u64,
        primary: bool,
    },
}

fn happening() -> impl Strategy<Value = Happening> {
    use Happening as H;
    let server = || 0..SERVERS;
    prop_oneof![
        4 => (1u64..50).prop_map(|bytes| H::Write { bytes }),
        5 => (server(), 1u64..80).prop_map(|(server, bytes)| H::Replay { server, bytes }),
        2 => (server(), 0u64..30).prop_map(|(server, lost)| H::Restart { server, lost }),
        1 => (server(), server()).prop_map(|(server, from)| H::Reclone { server, from }),
        1 => server().prop_map(|server| H::Promote { server }),
        2 => server().prop_map(|server| H::Follow { server }),
        1 => server().prop_map(|server| H::Rewind { server }),
        6 => server().prop_map(|server| H::Probe { server }),
        6 => (0usize..8, any::<bool>()).prop_map(|(nth, keep)| H::Deliver { nth, keep }),
        4 => server().prop_map(|server| H::Connect { server }),
        1 => server().prop_map(|server| H::Disconnect { server }),
        2 => any::<bool>().prop_map(|with_forks| H::LearnLineage { with_forks }),
        8 => (0usize..64, any::<bool>(), prop_oneof![Just(0u64), 1u64..200], any::<bool>())
            .prop_map(|(token, bare, budget_ms, primary)| {
                H::Read { token, bare, budget_ms, primary }
            }),
    ]
}

impl World {
    fn new() -> World {
        let server = |life| Server {
            life,
            branch: 0,
            replayed: Lsn(0),
            up: true,
        };
        World {
            branches: vec![Branch {
                parent: 0,
                forked_at: Lsn(0),
                end: Lsn(100),
            }],
            current: 0,
            servers: (0..SERVERS as u32).map(server).collect(),
            wire: Vec::new(),
            lineage: Lineage {
                current: Some(Timeline(1)),
                forks: Vec::new(),
            },
            candidates: vec![Candidate::default(); SERVERS],
            tokens: Vec::new(),
            lives: SERVERS as u32,
        }
    }

    fn new_life(&mut self) -> u32 {
        self.lives += 1;
        self.lives
    }

    /// Where `branch`'s history left `ancestor`; `None` if it is no ancestor.
    fn left(&self, branch: usize, ancestor: usize) -> Option<Lsn> {
        let mut left = self.branches[branch].end;
        let mut at = branch;
        loop {
            if at == ancestor {
                return Some(left);
            }
            if at == 0 {
                return None;
            }
            left = left.min(self.branches[at].forked_at);
            at = self.branches[at].parent;
        }
    }

    /// How far two histories are the same.
    fn common(&self, one: usize, other: usize) -> Lsn {
        let shared = (0..self.branches.len())
            .filter_map(|branch| Some(self.left(one, branch)?.min(self.left(other, branch)?)));
        shared.max().unwrap_or_default()
    }

    /// The branch of a history that holds a position.
    fn holder(&self, history: usize, lsn: Lsn) -> usize {
        let mut branch = history;
        while branch != 0 && lsn < self.branches[branch].forked_at {
            branch = self.branches[branch].parent;
        }
        branch
    }

    /// The truth: does this server have everything up to `lsn` of `timeline`'s history?
    fn has(&self, server: &Server, lsn: Lsn, timeline: usize) -> bool {
        let mut written_on = timeline;
        while written_on != 0 && lsn <= self.branches[written_on].forked_at {
            written_on = self.branches[written_on].parent;
        }
        let common = self.left(server.branch, written_on);
        server.replayed >= lsn && common.is_some_and(|common| lsn <= common)
    }

    fn happen(&mut self, happening: &Happening) {
        self.happen_to_servers(happening);
        self.happen_to_shim(happening);
    }

    fn happen_to_servers(&mut self, happening: &Happening) {
        match *happening {
            Happening::Write { bytes } => {
                let branch = &mut self.branches[self.current];
                branch.end = Lsn(branch.end.0 + bytes);
                let token = (branch.end, Timeline(self.current as u32 + 1));
                self.tokens.push(token);
            }
            Happening::Replay { server, bytes } => {
                let server = &mut self.servers[server];
                server.up = true;
                let end = self.branches[server.branch].end;
                server.replayed = Lsn((server.replayed.0 + bytes)
                    .min(end.0)
                    .max(server.replayed.0));
            }
            // A new life may begin at an older position than the last one had reached.
            Happening::Restart { server, lost } => {
                let life = self.new_life();
                let server = &mut self.servers[server];
                server.life = life;
                server.up = false;
                server.replayed = Lsn(server.replayed.0.saturating_sub(lost));
                // A standby on a timeline is never before the point where it began.
                server.replayed = server.replayed.max(self.branches[server.branch].forked_at);
            }
            Happening::Reclone { server, from } => {
                let life = self.new_life();
                self.servers[server] = Server {
                    life,
                    ..self.servers[from].clone()
                };
            }
            Happening::Promote { server } => {
                let (parent, forked_at) =
                    (self.servers[server].branch, self.servers[server].replayed);
                self.branches.push(Branch {
                    parent,
                    forked_at,
                    end: forked_at,
                });
                self.current = self.branches.len() - 1;
                self.servers[server].branch = self.current;
            }
            // A standby changes to the new timeline in the same life, if it is not beyond the fork.
            Happening::Follow { server } => {
                let fits = {
                    let server = &self.servers[server];
                    self.left(self.current, server.branch)
                        .is_some_and(|left| server.replayed <= left)
                };
                if fits {
                    self.servers[server].branch = self.current;
                }
            }
            // It is taken back to where its history left the current one, and follows that.
            Happening::Rewind { server } => {
                let life = self.new_life();
                let (branch, replayed) =
                    (self.servers[server].branch, self.servers[server].replayed);
                let replayed = replayed.min(self.common(self.current, branch));
                let branch = self.holder(self.current, replayed);
                self.servers[server] = Server {
                    life,
                    branch,
                    replayed,
                    up: false,
                };
            }
            _ => {}
        }
    }

    fn happen_to_shim(&mut self, happening: &Happening) {
        match *happening {
            Happening::Probe { server } => {
                let sample = self.sample(server);
                self.wire.push((server, sample));
            }
            Happening::Deliver { nth, keep } if !self.wire.is_empty() => {
                let nth = nth % self.wire.len();
                let (server, sample) = self.wire[nth].clone();
                if !keep {
                    self.wire.remove(nth);
                }
                self.candidates[server].sample = Some(sample);
            }
            Happening::Connect { server } => {
                self.candidates[server].connected = Some(self.incarnation(server));
            }
            Happening::Disconnect { server } => self.candidates[server].connected = None,
            Happening::LearnLineage { with_forks } => {
                let ancestors = (0..self.branches.len()).filter(|&one| one != self.current);
                let forks = ancestors
                    .filter_map(|one| {
                        let ended_at = self.left(self.current, one)?;
                        Some(Fork {
                            timeline: Timeline(one as u32 + 1),
                            ended_at,
                        })
                    })
                    .collect();
                let forks = if with_forks { forks } else { Vec::new() };
                let current = Some(Timeline(self.current as u32 + 1));
                self.lineage = Lineage { current, forks };
            }
            _ => {}
        }
    }

    /// What a guard has proved is noted, as the shim does.
    fn learn(&mut self, read: &Happening) {
        let Happening::Read {
            token,
            bare,
            budget_ms,
            primary,
        } = *read
        else {
            return;
        };
        let Some(floor) = self.floor(token, bare) else {
            return;
        };
        let (decision, served) = self.read(floor, budget_ms, primary);
        let (Decision::Guard { .. }, Some(at)) = (decision, served) else {
            return;
        };
        let (incarnation, proved) = (self.incarnation(at), located(floor, &self.lineage));
        if let Some(sample) = &mut self.candidates[at].sample {
            let life = (&sample.incarnation, sample.timeline);
            sample.replayed = sample.replayed.max(shown(life, &incarnation, proved));
        }
    }

    /// A bare position lies on whatever timeline the shim takes for the current one.
    fn floor(&self, token: usize, bare: bool) -> Option<Position> {
        let count = self.tokens.len().max(1);
        let (lsn, timeline) = *self.tokens.get(token % count)?;
        Some((lsn, (!bare).then_some(timeline)))
    }

    fn incarnation(&self, server: usize) -> Incarnation {
        Incarnation(format!("life {}", self.servers[server].life))
    }

    fn sample(&self, at: usize) -> Sample {
        let server = &self.servers[at];
        Sample {
            incarnation: self.incarnation(at),
            timeline: Some(Timeline(server.branch as u32 + 1)),
            replayed: server.up.then_some(server.replayed),
            rate: (server.replayed.0.is_multiple_of(3)).then_some(server.replayed.0),
            lag_ms: (server.replayed.0.is_multiple_of(2)).then_some(7),
            age_ms: 0,
        }
    }

    /// Runs a read and says which server answered, if any.
    fn read(&self, floor: Position, budget_ms: u64, primary: bool) -> (Decision, Option<usize>) {
        let fallback = if primary {
            Fallback::Primary
        } else {
            Fallback::Refuse
        };
        let ask = Ask {
            floor,
            lineage: &self.lineage,
            budget_ms,
            fallback,
        };
        let decision = choose(&self.candidates, &ask);
        let server = match decision {
            // A connection dies with the life that it was opened to: nothing is served over it.
            Decision::Serve(server) => (self.candidates[server].connected
                == Some(self.incarnation(server)))
            .then_some(server),
            // The guard runs on the server as it is now, and tells the truth.
            Decision::Guard { candidate, .. } => {
                let (lsn, timeline) = located(floor, &self.lineage);
                let server = &self.servers[candidate];
                timeline
                    .is_some_and(|t| self.has(server, lsn, t.0 as usize - 1))
                    .then_some(candidate)
            }
            Decision::Wait { .. }
            | Decision::Primary
            | Decision::NotCaughtUp { .. }
            | Decision::Lost { .. } => None,
        };
        (decision, server)
    }
}

/// What must hold for one read; the error names what does not.
fn check(world: &World, read: &Happening) -> Result<(), String> {
    let Happening::Read {
        token,
        bare,
        budget_ms,
        primary,
    } = *read
    else {
        return Ok(());
    };
    let Some(floor) = world.floor(token, bare) else {
        return Ok(());
    };
    let (lsn, timeline) = world.tokens[token % world.tokens.len()];
    let (decision, server) = world.read(floor, budget_ms, primary);
    if let Some(at) = server {
        let server = &world.servers[at];
        // A bare position is a position on the timeline that the shim knows as the current one.
        let lies_on = floor
            .1
            .or(world.lineage.current)
            .expect("the model always knows one");
        if !world.has(server, lsn, lies_on.0 as usize - 1) {
            return Err(format!(
                "{decision:?} serves {floor:?} below its floor by {server:?}"
            ));
        }
    }
    match decision {
        Decision::Guard { budget_ms: 0, .. } | Decision::Wait { .. } if budget_ms == 0 => {
            Err("waits without a budget".into())
        }
        Decision::Guard {
            budget_ms: given, ..
        } if given > budget_ms => Err("waits for longer than it may".into()),
        Decision::Primary if !primary => Err("the primary is not allowed".into()),
        Decision::NotCaughtUp { .. } if primary && world.lineage.fork(timeline).is_some() => {
            Err("refused although the primary has it".into())
        }
        // Said only of what is gone for good.
        Decision::Lost { timeline: now, .. } => {
            let there = world.left(now.0 as usize - 1, timeline.0 as usize - 1);
            match there {
                Some(left) if lsn <= left => Err("called lost what is there".into()),
                Some(_) | None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// `PROPTEST_CASES` asks for more.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases.max(800),
        failure_persistence: None,
        ..default
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_schedule_serves_a_read_below_its_floor(
        happenings in prop::collection::vec(happening(), 1..120),
    ) {
        let mut world = World::new();
        for happening in &happenings {
            world.happen(happening);
            if let Err(broken) = check(&world, happening) {
                prop_assert!(false, "{broken}\n{world:#?}");
            }
            world.learn(happening);
        }
    }
}
