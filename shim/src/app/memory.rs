//! What clients have left behind goes back to the system.
//!
//! glibc keeps what is freed for whoever asks next, and gives back by itself only what lies at the
//! end of an arena. After many clients nearly all of it lies in between: a process that served a
//! thousand of them would look for ever as if it still did. So when many have left, it is told to.

use std::sync::Arc;
use std::time::Duration;

use crate::session::Services;

/// How often the clients are counted.
const PERIOD: Duration = Duration::from_secs(1);

/// Fewer clients leave nothing behind that would be worth the walk through all arenas.
const MANY: usize = 50;

/// So many looks without a change are calm.
const CALM: u32 = 5;

/// Gives memory back whenever many clients have left, for as long as the process runs.
pub fn give_back_after_clients(services: Arc<Services>) {
    tokio::spawn(async move {
        let mut tide = Tide::default();
        // Nobody tells of memory that is not needed any more.
        let mut ticks = tokio::time::interval(PERIOD);
        while !services.shutdown.is_cancelled() {
            ticks.tick().await;
            services.plans.begin_round();
            if tide.has_turned(services.seats.taken()) {
                services.plans.forget_passing();
                // It takes milliseconds, in which clients would wait.
                let _ = tokio::task::spawn_blocking(give_back).await;
            }
        }
    });
}

/// How the number of clients goes.
#[derive(Debug, Default)]
struct Tide {
    /// The most since memory was given back last.
    highest: usize,
    last: usize,
    /// Looks since it has fallen, while it did not change; None: it has not, or all is done.
    calm: Option<u32>,
}

impl Tide {
    /// Whether half of so many clients have left, now that so many are here; and once more when
    /// it has become calm, as the last of them take something along too.
    fn has_turned(&mut self, clients: usize) -> bool {
        self.highest = self.highest.max(clients);
        let gone = self.highest - clients;
        let turned = gone >= MANY && gone * 2 >= self.highest;
        self.calm = match (turned, self.calm) {
            (true, _) => Some(0),
            (false, Some(looks)) if clients == self.last => Some(looks + 1),
            (false, looks) => looks.map(|_| 0),
        };
        self.last = clients;
        let is_over = self.calm == Some(CALM);
        if is_over {
            self.calm = None;
        }
        if turned || is_over {
            self.highest = clients;
        }
        turned || is_over
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    // SAFETY: malloc_trim takes the allocator's own locks, may be called from any thread, and
    // moves nothing that is in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Other allocators give back by themselves, or have no word for it.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tide_turns_when_half_of_many_clients_have_left() {
        let mut tide = Tide::default();
        assert!(!tide.has_turned(1000));
        assert!(!tide.has_turned(501));
        assert!(tide.has_turned(500));
        assert!(!tide.has_turned(500), "once");
        assert!(!tide.has_turned(600));
        assert!(tide.has_turned(0));
    }

    #[test]
    fn it_is_looked_after_once_more_when_all_is_calm() {
        let mut tide = Tide::default();
        tide.has_turned(100);
        assert!(tide.has_turned(30));
        assert!(!tide.has_turned(10));
        let turns: Vec<_> = (0..20).map(|_| tide.has_turned(10)).collect();
        assert_eq!(turns.iter().filter(|turned| **turned).count(), 1);
        assert!(turns[CALM as usize - 1]);
    }

    #[test]
    fn a_few_clients_that_come_and_go_are_no_tide() {
        let mut tide = Tide::default();
        for _ in 0..10 {
            assert!(!tide.has_turned(MANY - 1));
            assert!(!tide.has_turned(0));
        }
    }
}
