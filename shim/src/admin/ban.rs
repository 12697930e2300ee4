//! `BAN`, `UNBAN`: takes a node out of the reads, and puts it back.

use pgdog_core::fault::Fault;

use super::{Admin, Args, Command, Output, place};
use crate::nodes::Role;

pub(super) const BAN: Command = Command {
    words: &["BAN"],
    usage: "BAN <host> <port>",
    run: |admin, args| Box::pin(async { run(admin, args, true) }),
};

pub(super) const UNBAN: Command = Command {
    words: &["UNBAN"],
    usage: "UNBAN <host> <port>",
    run: |admin, args| Box::pin(async { run(admin, args, false) }),
};

fn run(admin: &Admin, args: &Args, banned: bool) -> Result<Output, Fault> {
    let host = args.word(0)?;
    let port = args.word(1)?.parse().map_err(|_| args.misused())?;
    let node = format!("{host}:{port}");
    let (_, _, role) = place(&admin.host().clusters(), host, port);
    match (banned, role) {
        (true, None) => {
            return Err(Fault::UnknownObject {
                kind: "node",
                name: node,
            });
        }
        (true, Some(Role::Primary)) => {
            return Err(Fault::WrongState {
                what: format!("cannot ban {node}"),
                why: "it is a primary: writes have no other place".to_owned(),
                hint: None,
            });
        }
        (true, Some(Role::Replica)) | (false, _) => {}
    }
    if !admin.host().ban(host, port, banned) && !banned {
        return Err(Fault::UnknownObject {
            kind: "ban of",
            name: node,
        });
    }
    Ok(Output::done(if banned { "BAN" } else { "UNBAN" }))
}
