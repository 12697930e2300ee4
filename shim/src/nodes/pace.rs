//! How soon abandoned transactions are looked for again. Pure.

use std::time::Duration;

/// Between two looks when nothing happens.
const USUAL: Duration = Duration::from_secs(5);
/// While there may be more of what was just found.
const CLOSE: Duration = Duration::from_secs(1);
/// Looks in close succession after something was finished: a coordinator that has ended leaves
/// transactions at several points, and what its servers were still doing comes to light later. A
/// part that is left undecided is taken after 10 s, within these.
const LOOKS: u32 = 15;

/// How many looks in close succession are still to come.
#[derive(Debug, Default)]
pub(super) struct Pace {
    close: u32,
}

impl Pace {
    /// How long to wait after a look that has finished something, or has not.
    pub(super) fn after(&mut self, finished_some: bool) -> Duration {
        self.close = match finished_some {
            true => LOOKS,
            false => self.close.saturating_sub(1),
        };
        match self.close {
            0 => USUAL,
            _ => CLOSE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_looks_often_for_a_while_after_it_has_finished_something() {
        let mut pace = Pace::default();
        assert_eq!(pace.after(false), USUAL);
        assert_eq!(pace.after(true), CLOSE);
        let close = (0..100).take_while(|_| pace.after(false) == CLOSE).count();
        // Long enough for what is taken only after 10 s.
        assert!(CLOSE * u32::try_from(close).unwrap() > Duration::from_secs(10));
        assert_eq!(pace.after(false), USUAL);
    }
}
