//! `PLAN SHARD`: the dry run of `ADD SHARD`.

use pgdog_core::fault::Fault;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::workflow::{Plan, Site, plan};

pub(super) const COMMAND: Command = Command {
    words: &["PLAN", "SHARD"],
    usage: "PLAN SHARD <database> <shard> [PUBLICATION <name>]",
    run: |admin, args| Box::pin(run(admin, args)),
};

const COLUMNS: &[&str] = &["item", "verdict", "found", "remedy"];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let cluster = admin.cluster(args.word(0)?)?;
    let shard = args.shard(1)?;
    let publication = match args.words.get(2..).unwrap_or_default() {
        [] => None,
        [word, name] if word.eq_ignore_ascii_case("PUBLICATION") => Some(name.as_str()),
        _ => return Err(args.misused()),
    };
    let planned = plan(&Site::of(&cluster), shard, publication).await;
    let plan = planned.map_err(|error| Fault::WrongState {
        what: format!("cannot plan shard {shard}"),
        why: error.to_string(),
        hint: None,
    })?;
    Ok(table(&plan))
}

fn table(plan: &Plan) -> Output {
    let mut output = Output::table(COLUMNS);
    for finding in &plan.findings {
        let remedy = (!finding.remedy.is_empty()).then(|| finding.remedy.clone());
        output.push(vec![
            cell(finding.guard),
            cell(finding.verdict.name()),
            cell(&finding.reason),
            remedy,
        ]);
    }
    let what = format!(
        "{} tables, about {} rows, {} bytes",
        plan.tables, plan.rows, plan.bytes
    );
    output.push(vec![cell("to copy"), cell("plan"), cell(what), None]);
    let time = format!("about {} s, very roughly", plan.copy_s);
    output.push(vec![
        cell("time of the copy"),
        cell("plan"),
        cell(time),
        None,
    ]);
    let (verdict, text) = match plan.is_clear() {
        true => ("ok", "ADD SHARD would go ahead"),
        false => ("blocked", "ADD SHARD would be aborted"),
    };
    output.push(vec![cell("in all"), cell(verdict), cell(text), None]);
    output
}
