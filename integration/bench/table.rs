//! The figures as a table in Markdown.

use std::collections::BTreeMap;
use std::fmt;

use super::load::{Case, Sample, median};
use super::targets::{BOUNCER, DIRECT, PGDOG, RELAY};

/// All samples.
#[derive(Debug, Default)]
pub struct Table {
    samples: BTreeMap<Case, BTreeMap<&'static str, Vec<Sample>>>,
}

impl Table {
    /// Adds a sample.
    pub fn add(&mut self, case: Case, target: &'static str, sample: Sample) {
        let case = self.samples.entry(case).or_default();
        case.entry(target).or_default().push(sample);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "CPU microseconds of the proxy per query: median (least to most); throughput as a part \
             of the direct connection's.\n"
        )?;
        writeln!(
            f,
            "| mode, clients | relay | PgBouncer | pgdog | / PgBouncer | / relay |"
        )?;
        writeln!(f, "|---|--:|--:|--:|--:|--:|")?;
        for (case, targets) in &self.samples {
            let of = |name| targets.get(name).map_or(&[][..], Vec::as_slice);
            let direct = median(of(DIRECT), |sample| sample.tps);
            let cost = |name| median(of(name), |sample| sample.cpu_us);
            writeln!(
                f,
                "| {}, {} | {} | {} | {} | {} | {} |",
                case.mode.as_str(),
                case.clients,
                cell(of(RELAY), direct),
                cell(of(BOUNCER), direct),
                cell(of(PGDOG), direct),
                ratio(cost(PGDOG), cost(BOUNCER)),
                ratio(cost(PGDOG), cost(RELAY)),
            )?;
        }
        Ok(())
    }
}

fn cell(samples: &[Sample], direct: Option<f64>) -> String {
    let Some(cpu) = median(samples, |sample| sample.cpu_us) else {
        return "—".to_owned();
    };
    let all = samples.iter().map(|sample| sample.cpu_us);
    let (least, most) = (
        all.clone().fold(f64::INFINITY, f64::min),
        all.fold(0.0, f64::max),
    );
    let tps = ratio(median(samples, |sample| sample.tps), direct);
    format!("{cpu:.1} ({least:.1} to {most:.1}); {tps}")
}

fn ratio(of: Option<f64>, to: Option<f64>) -> String {
    match (of, to) {
        (Some(of), Some(to)) if to > 0.0 => format!("{:.2}", of / to),
        _ => "—".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Mode;

    fn sample(cpu_us: f64, tps: f64) -> Sample {
        Sample { cpu_us, tps }
    }

    #[test]
    fn medians_are_printed_with_their_spread() {
        let mut table = Table::default();
        let case = Case::new(Mode::Simple, 8);
        table.add(case, DIRECT, sample(0.0, 200.0));
        for cpu_us in [12.0, 10.0, 11.0] {
            table.add(case, PGDOG, sample(cpu_us, 100.0));
        }
        table.add(case, RELAY, sample(10.0, 150.0));
        let text = table.to_string();
        let row = text.lines().last().unwrap_or_default();
        assert_eq!(
            row,
            "| simple, 8 | 10.0 (10.0 to 10.0); 0.75 | — | 11.0 (10.0 to 12.0); 0.50 | — | 1.10 |"
        );
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two() {
        let samples = [sample(1.0, 1.0), sample(2.0, 1.0)];
        assert_eq!(median(&samples, |sample| sample.cpu_us), Some(1.5));
        assert_eq!(median(&[], |sample| sample.cpu_us), None);
    }
}
