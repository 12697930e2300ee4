//! `ADD SHARD`: asks for a new shard; the task runs in the background.

use pgdog_core::fault::Fault;
use pgdog_core::ids::ShardNumber;
use pgdog_core::workflow::State;

use super::command::cell;
use super::{Admin, Args, Command, Output};
use crate::nodes::tasks::{self, AddShard};
use crate::workflow::{Node, Site, WorkflowError};

pub(super) const COMMAND: Command = Command {
    words: &["ADD", "SHARD"],
    usage: "ADD SHARD <database> <shard> [AUTO] [PUBLICATION <name>]",
    run: |admin, args| Box::pin(run(admin, args)),
};

/// Columns of every verb that starts or changes a task.
pub(super) const COLUMNS: &[&str] = &["task_id", "database", "shard", "status"];

async fn run(admin: &Admin, args: &Args) -> Result<Output, Fault> {
    let cluster = admin.cluster(args.word(0)?)?;
    let request = options(args)?;
    let site = Site::of(&cluster);
    reachable(&site, request.shard)
        .await
        .map_err(|error| Fault::WrongState {
            what: format!("cannot add shard {}", request.shard),
            why: error.to_string(),
            hint: Some("PLAN SHARD shows everything that stands against it.".into()),
        })?;
    let shard = request.shard;
    let task = tasks::add_shard(&cluster, &request).await?;
    let mut output = Output::table(COLUMNS);
    output.tag = "ADD SHARD".into();
    let status = cell(State::Validating);
    output.push(vec![cell(task), cell(cluster.name()), cell(shard), status]);
    Ok(output)
}

fn options(args: &Args) -> Result<AddShard, Fault> {
    let mut request = AddShard {
        shard: args.shard(1)?,
        auto: false,
        publication: None,
    };
    let mut words = args.words.iter().skip(2);
    while let Some(word) = words.next() {
        match word.to_ascii_uppercase().as_str() {
            "AUTO" if !request.auto => request.auto = true,
            "PUBLICATION" if request.publication.is_none() => {
                let name = words.next().ok_or_else(|| args.misused())?;
                request.publication = Some(name.clone());
            }
            _ => return Err(args.misused()),
        }
    }
    Ok(request)
}

/// The mistakes that can be told at once: not declared, not there.
async fn reachable(site: &Site, shard: ShardNumber) -> Result<(), WorkflowError> {
    let Some(address) = site.new_shard(shard) else {
        let text = format!(
            "no entry of database \"{}\" declares shard {shard} with provisioning = true",
            site.database
        );
        return Err(WorkflowError::Wrong(text));
    };
    Node::connect(site, address, None).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(words: &[&str]) -> Args {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Args {
            words,
            usage: COMMAND.usage,
        }
    }

    #[test]
    fn options_come_in_any_order_and_once() {
        let request = options(&args(&["prod", "2", "publication", "Mine", "auto"])).unwrap();
        assert_eq!(
            request,
            AddShard {
                shard: ShardNumber(2),
                auto: true,
                publication: Some("Mine".into())
            }
        );
        for wrong in [
            vec!["prod"],
            vec!["prod", "two"],
            vec!["prod", "2", "AUTO", "AUTO"],
            vec!["prod", "2", "PUBLICATION"],
            vec!["prod", "2", "NOW"],
        ] {
            assert_eq!(
                options(&args(&wrong)).unwrap_err().sqlstate(),
                "42601",
                "{wrong:?}"
            );
        }
    }
}
