//! Values of the `pgdog.*` parameters: names, parsing as strict as PostgreSQL's, printing. Pure.

use std::sync::Arc;

use pgdog_core::lsn::Token;
use pgdog_core::moment::Moment;

use crate::plan::is_unread;

/// A parameter that the shim answers itself and never forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Name {
    /// `pgdog.min_lsn`
    MinLsn,
    /// `pgdog.min_commit_timestamp`
    MinCommitTimestamp,
    /// `pgdog.read_your_writes`
    ReadYourWrites,
    /// `pgdog.min_lsn_wait`
    MinLsnWait,
    /// `pgdog.min_lsn_primary_fallback`
    PrimaryFallback,
    /// `pgdog.role`
    Role,
    /// `pgdog.shard`
    Shard,
    /// `pgdog.sharding_key`
    ShardingKey,
    /// `pgdog.report_commit_lsn`
    ReportCommitLsn,
    /// `pgdog.last_route`, read-only.
    LastRoute,
    /// `pgdog.commit_lsn`, read-only.
    CommitLsn,
}

/// What a name that begins with `pgdog.` is to the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Answered by the shim.
    Own(Name),
    /// Kept by the shim on every server connection: a client may not touch it.
    Reserved,
    /// The extension's business: goes through like any other parameter.
    Forwarded,
}

/// Sorts a parameter's lower-case name.
pub fn classify(name: &str) -> Class {
    let Some(rest) = name.strip_prefix("pgdog.") else {
        return Class::Forwarded;
    };
    match rest {
        "min_lsn" => Class::Own(Name::MinLsn),
        "min_commit_timestamp" => Class::Own(Name::MinCommitTimestamp),
        "read_your_writes" => Class::Own(Name::ReadYourWrites),
        "min_lsn_wait" => Class::Own(Name::MinLsnWait),
        "min_lsn_primary_fallback" => Class::Own(Name::PrimaryFallback),
        "role" => Class::Own(Name::Role),
        "shard" => Class::Own(Name::Shard),
        "sharding_key" => Class::Own(Name::ShardingKey),
        "report_commit_lsn" => Class::Own(Name::ReportCommitLsn),
        "last_route" => Class::Own(Name::LastRoute),
        "commit_lsn" => Class::Own(Name::CommitLsn),
        "epoch" | "wait_lsn" | "wait_lsn_timeout" => Class::Reserved,
        _ => Class::Forwarded,
    }
}

impl Name {
    /// The full name.
    pub fn as_str(self) -> &'static str {
        match self {
            Name::MinLsn => "pgdog.min_lsn",
            Name::MinCommitTimestamp => "pgdog.min_commit_timestamp",
            Name::ReadYourWrites => "pgdog.read_your_writes",
            Name::MinLsnWait => "pgdog.min_lsn_wait",
            Name::PrimaryFallback => "pgdog.min_lsn_primary_fallback",
            Name::Role => "pgdog.role",
            Name::Shard => "pgdog.shard",
            Name::ShardingKey => "pgdog.sharding_key",
            Name::ReportCommitLsn => "pgdog.report_commit_lsn",
            Name::LastRoute => "pgdog.last_route",
            Name::CommitLsn => "pgdog.commit_lsn",
        }
    }
}

/// `pgdog.role`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoleChoice {
    /// The statement decides.
    #[default]
    Auto,
    /// Everything to the primary.
    Primary,
    /// Reads to a replica, also inside transactions.
    Replica,
}

/// The values of one session at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Values {
    /// Floor of reads.
    pub min_lsn: Arc<Token>,
    /// Floor of reads in time: all commits stamped up to this.
    pub min_commit_timestamp: Option<Moment>,
    /// Whether own commits raise the floor.
    pub read_your_writes: bool,
    /// How long a read may wait for a replica, in ms.
    pub min_lsn_wait_ms: u64,
    /// Whether the primary answers when no replica can.
    pub primary_fallback: bool,
    /// Which nodes.
    pub role: RoleChoice,
    /// Manual shard.
    pub shard: Option<u16>,
    /// Manual key.
    pub sharding_key: Option<Arc<str>>,
    /// Whether commits push their token.
    pub report_commit_lsn: bool,
}

impl Default for Values {
    fn default() -> Self {
        Self {
            min_lsn: Arc::new(Token::default()),
            min_commit_timestamp: None,
            read_your_writes: false,
            min_lsn_wait_ms: 100,
            primary_fallback: false,
            role: RoleChoice::Auto,
            shard: None,
            sharding_key: None,
            report_commit_lsn: false,
        }
    }
}

/// Why a value is not taken: the old one stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejected {
    /// 22023.
    Invalid(String),
    /// 55P02.
    ReadOnly,
}

impl Values {
    /// Parses `text` for `name` and stores it.
    ///
    /// # Errors
    /// [`Rejected`], with the old value untouched.
    pub fn assign(&mut self, name: Name, text: &str) -> Result<(), Rejected> {
        match name {
            Name::MinLsn => {
                let token: Token = text
                    .parse()
                    .map_err(|_| invalid("expected X/Y, or 0=X/Y,1=X/Y, or nothing"))?;
                self.min_lsn = Arc::new(token);
            }
            Name::MinCommitTimestamp => {
                self.min_commit_timestamp = match text {
                    "" => None,
                    text => {
                        let moment = text.parse::<Moment>();
                        Some(moment.map_err(|why| Rejected::Invalid(why.to_string()))?)
                    }
                }
            }
            Name::ReadYourWrites => {
                self.read_your_writes = match text.to_ascii_lowercase().as_str() {
                    "off" => false,
                    "session" => true,
                    _ => return Err(invalid("expected off or session")),
                }
            }
            Name::MinLsnWait => self.min_lsn_wait_ms = duration_ms(text)?,
            Name::PrimaryFallback => self.primary_fallback = boolean(text)?,
            Name::Role => {
                self.role = match text.to_ascii_lowercase().as_str() {
                    "auto" => RoleChoice::Auto,
                    "primary" => RoleChoice::Primary,
                    "replica" => RoleChoice::Replica,
                    _ => return Err(invalid("expected primary, replica or auto")),
                }
            }
            Name::Shard => {
                self.shard = match text {
                    "" => None,
                    digits => Some(plain_number(digits)?),
                }
            }
            Name::ShardingKey => {
                self.sharding_key = match text {
                    "" => None,
                    key if is_unread(key) => return Err(unread()),
                    key => Some(Arc::from(key)),
                }
            }
            Name::ReportCommitLsn => self.report_commit_lsn = boolean(text)?,
            Name::LastRoute | Name::CommitLsn => return Err(Rejected::ReadOnly),
        }
        Ok(())
    }

    /// Takes one value over from another set.
    pub fn copy_from(&mut self, other: &Values, name: Name) {
        match name {
            Name::MinLsn => self.min_lsn = other.min_lsn.clone(),
            Name::ReadYourWrites => self.read_your_writes = other.read_your_writes,
            Name::MinLsnWait => self.min_lsn_wait_ms = other.min_lsn_wait_ms,
            Name::PrimaryFallback => self.primary_fallback = other.primary_fallback,
            Name::Role => self.role = other.role,
            Name::Shard => self.shard = other.shard,
            Name::ShardingKey => self.sharding_key = other.sharding_key.clone(),
            Name::ReportCommitLsn => self.report_commit_lsn = other.report_commit_lsn,
            Name::MinCommitTimestamp => self.min_commit_timestamp = other.min_commit_timestamp,
            Name::LastRoute | Name::CommitLsn => {}
        }
    }

    /// What SHOW prints. The read-only ones are the session's business and empty here.
    pub fn show(&self, name: Name) -> String {
        match name {
            Name::MinLsn => self.min_lsn.to_string(),
            Name::MinCommitTimestamp => {
                let moment = self.min_commit_timestamp;
                moment.map(|moment| moment.to_string()).unwrap_or_default()
            }
            Name::LastRoute | Name::CommitLsn => String::new(),
            Name::ReadYourWrites => if self.read_your_writes {
                "session"
            } else {
                "off"
            }
            .into(),
            Name::MinLsnWait => show_ms(self.min_lsn_wait_ms),
            Name::PrimaryFallback => on_off(self.primary_fallback),
            Name::Role => match self.role {
                RoleChoice::Auto => "auto",
                RoleChoice::Primary => "primary",
                RoleChoice::Replica => "replica",
            }
            .into(),
            Name::Shard => self.shard.map(|s| s.to_string()).unwrap_or_default(),
            Name::ShardingKey => self.sharding_key.as_deref().unwrap_or_default().into(),
            Name::ReportCommitLsn => on_off(self.report_commit_lsn),
        }
    }
}

fn invalid(why: &str) -> Rejected {
    Rejected::Invalid(why.to_owned())
}

fn on_off(value: bool) -> String {
    if value { "on" } else { "off" }.to_owned()
}

/// A boolean as PostgreSQL reads it: unique prefixes of true, false, yes, no; on, of(f), 1, 0.
fn boolean(text: &str) -> Result<bool, Rejected> {
    let lower = text.to_ascii_lowercase();
    let is_prefix_of = |word: &str| !lower.is_empty() && word.starts_with(&lower);
    if is_prefix_of("true") || is_prefix_of("yes") || lower == "on" || lower == "1" {
        return Ok(true);
    }
    let off = lower.len() > 1 && "off".starts_with(&lower);
    if is_prefix_of("false") || is_prefix_of("no") || off || lower == "0" {
        return Ok(false);
    }
    Err(invalid("expected a boolean"))
}

/// A whole number without sign or spaces.
fn plain_number(text: &str) -> Result<u16, Rejected> {
    let all_digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match all_digits.then(|| text.parse()) {
        Some(Ok(number)) => Ok(number),
        Some(Err(_)) | None => Err(invalid("expected a shard number or nothing")),
    }
}

/// A duration as PostgreSQL reads it: a number, then ms (default), s, min, h, d or us.
fn duration_ms(text: &str) -> Result<u64, Rejected> {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let factor = match unit.trim() {
        "us" => 0.001,
        "" | "ms" => 1.0,
        "s" => 1_000.0,
        "min" => 60_000.0,
        "h" => 3_600_000.0,
        "d" => 86_400_000.0,
        _ => return Err(invalid("valid units are us, ms, s, min, h and d")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| invalid("expected a duration, such as 100ms"))?;
    let ms = (number * factor).round();
    if ms > f64::from(i32::MAX) {
        return Err(invalid("must be at most 2147483647 ms"));
    }
    Ok(ms as u64)
}

fn show_ms(ms: u64) -> String {
    match ms {
        0 => "0".to_owned(),
        ms if ms % 86_400_000 == 0 => format!("{}d", ms / 86_400_000),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}min", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

fn unread() -> Rejected {
    Rejected::Invalid("in this client_encoding only ASCII can be read".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_and_print_like_postgres() {
        for (text, shown) in [
            ("100", "100ms"),
            ("100ms", "100ms"),
            ("2000", "2s"),
            ("1.5 s", "1500ms"),
            ("1min", "1min"),
            ("0", "0"),
        ] {
            let mut values = Values::default();
            values.assign(Name::MinLsnWait, text).unwrap();
            assert_eq!(values.show(Name::MinLsnWait), shown, "{text}");
        }
        for bad in ["", "ms", "-1", "1 week", "1e3", "99999999999", "1..2"] {
            assert!(duration_ms(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn malformed_values_leave_the_old_one() {
        let mut values = Values::default();
        values.assign(Name::MinLsn, "0/10").unwrap();
        values.assign(Name::Shard, "3").unwrap();
        let stamp = "2024-01-01 10:00:00.123456+02";
        values.assign(Name::MinCommitTimestamp, stamp).unwrap();
        assert_eq!(
            values.show(Name::MinCommitTimestamp),
            "2024-01-01 08:00:00.123456+00"
        );
        let before = values.clone();
        for (name, bad) in [
            (Name::MinLsn, "0/10 "),
            (Name::MinLsn, "+0/10"),
            (Name::MinLsn, "0/123456789"),
            (Name::MinLsn, "0=0/1,0=0/2"),
            (Name::MinCommitTimestamp, "yesterday"),
            (Name::MinCommitTimestamp, "2024-01-01 10:00:00"),
            (Name::Shard, "-1"),
            (Name::Shard, "70000"),
            (Name::Shard, "+1"),
            (Name::Role, "master"),
            (Name::ReadYourWrites, "on"),
            (Name::PrimaryFallback, "o"),
            (Name::PrimaryFallback, ""),
            (Name::CommitLsn, "0/1"),
        ] {
            assert!(values.assign(name, bad).is_err(), "{name:?} {bad}");
            assert_eq!(values, before, "{name:?} {bad}");
        }
    }

    #[test]
    fn booleans_take_postgres_words() {
        for yes in ["on", "true", "t", "TRUE", "yes", "y", "1"] {
            assert_eq!(boolean(yes), Ok(true), "{yes}");
        }
        for no in ["off", "of", "false", "f", "no", "n", "0"] {
            assert_eq!(boolean(no), Ok(false), "{no}");
        }
    }

    #[test]
    fn what_the_shim_sets_on_servers_is_reserved() {
        assert_eq!(classify("pgdog.epoch"), Class::Reserved);
        assert_eq!(classify("pgdog.wait_lsn"), Class::Reserved);
        assert_eq!(classify("pgdog.task_id"), Class::Forwarded);
        assert_eq!(classify("search_path"), Class::Forwarded);
        assert_eq!(classify("pgdog.role"), Class::Own(Name::Role));
    }
}
