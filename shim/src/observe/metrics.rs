//! Metrics as text, in the form of OpenMetrics 1.0.
//!
//! <https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md>

use std::fmt::Write as _;

/// How a value behaves over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// It goes up and down.
    Gauge,
    /// It only goes up; its name ends in `_total` as shown.
    Counter,
}

/// Values of one name.
#[derive(Debug, Clone, PartialEq)]
pub struct Metric {
    /// Name without namespace and `_total`.
    pub name: &'static str,
    /// What it is.
    pub help: &'static str,
    /// How it behaves.
    pub kind: Kind,
    /// Labels and value.
    pub samples: Vec<(Vec<(&'static str, String)>, f64)>,
}

impl Metric {
    /// A metric without values yet.
    pub fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            help,
            kind,
            samples: Vec::new(),
        }
    }

    /// With one more value.
    #[must_use]
    pub fn with(mut self, labels: &[(&'static str, &str)], value: f64) -> Self {
        let labels = labels
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()));
        self.samples.push((labels.collect(), value));
        self
    }
}

/// Everything, ready to be sent.
pub fn render(namespace: &str, metrics: &[Metric]) -> String {
    let mut out = String::new();
    for metric in metrics {
        let name = format!("{namespace}{}", metric.name);
        let (kind, suffix) = match metric.kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
        };
        // Writing to a String does not fail.
        let _ = writeln!(out, "# TYPE {name} {kind}\n# HELP {name} {}", metric.help);
        for (labels, value) in &metric.samples {
            let _ = write!(out, "{name}{suffix}");
            if !labels.is_empty() {
                let labels: Vec<String> = labels
                    .iter()
                    .map(|(label, value)| format!("{label}=\"{}\"", escaped(value)))
                    .collect();
                let _ = write!(out, "{{{}}}", labels.join(","));
            }
            let _ = writeln!(out, " {value}");
        }
    }
    out.push_str("# EOF\n");
    out
}

fn escaped(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_has_its_suffix_and_labels_are_escaped() {
        let clients = Metric::new("clients", Kind::Gauge, "Clients connected.").with(&[], 3.0);
        let queries = Metric::new("queries", Kind::Counter, "Statements run.")
            .with(&[("user", "a\"b\\c"), ("database", "d")], 2.5);
        assert_eq!(
            render("pgdog_", &[clients, queries]),
            "# TYPE pgdog_clients gauge\n# HELP pgdog_clients Clients connected.\n\
             pgdog_clients 3\n\
             # TYPE pgdog_queries counter\n# HELP pgdog_queries Statements run.\n\
             pgdog_queries_total{user=\"a\\\"b\\\\c\",database=\"d\"} 2.5\n# EOF\n"
        );
    }
}
