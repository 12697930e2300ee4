//! DDL and maintenance: what runs on every shard, and what cannot run in a transaction block.

use pg_query::NodeEnum;
use pg_query::protobuf::{
    AlterTableStmt, AlterTableType, ColumnDef, ConstrType, DefElem, DropStmt, Node, ObjectType,
    RangeVar, ReindexObjectType, ReindexStmt,
};

use super::Kind;
use super::facts::Facts;
use super::scope::Scope;
use super::value::string;

const TRANSACTIONAL: Kind = Kind::Ddl {
    transactional: true,
};
const ALONE: Kind = Kind::Ddl {
    transactional: false,
};

impl Facts {
    /// The kind of a statement that defines or maintains something. Relations that it names are
    /// noted so that temporary ones can be told.
    pub(super) fn definition(&mut self, node: &NodeEnum) -> Kind {
        match node {
            NodeEnum::AlterTableStmt(alter) => {
                self.named(alter.relation.as_ref());
                self.fills(alter);
                if detaches_concurrently(alter) {
                    ALONE
                } else {
                    TRANSACTIONAL
                }
            }
            NodeEnum::RenameStmt(rename) => {
                self.named(rename.relation.as_ref());
                TRANSACTIONAL
            }
            NodeEnum::IndexStmt(index) => {
                self.named(index.relation.as_ref());
                if index.concurrent {
                    ALONE
                } else {
                    TRANSACTIONAL
                }
            }
            NodeEnum::DropStmt(drop) => {
                self.dropped(drop);
                if drop.concurrent {
                    ALONE
                } else {
                    TRANSACTIONAL
                }
            }
            NodeEnum::CreateTrigStmt(trigger) => {
                self.named(trigger.relation.as_ref());
                TRANSACTIONAL
            }
            NodeEnum::ReindexStmt(reindex) => {
                self.named(reindex.relation.as_ref());
                if reindexes_alone(reindex) {
                    ALONE
                } else {
                    TRANSACTIONAL
                }
            }
            NodeEnum::ClusterStmt(cluster) => {
                self.named(cluster.relation.as_ref());
                if cluster.relation.is_some() {
                    TRANSACTIONAL
                } else {
                    ALONE
                }
            }
            NodeEnum::VacuumStmt(vacuum) => {
                for relation in &vacuum.rels {
                    if let Some(NodeEnum::VacuumRelation(relation)) = &relation.node {
                        self.named(relation.relation.as_ref());
                    }
                }
                if vacuum.is_vacuumcmd {
                    ALONE
                } else {
                    TRANSACTIONAL
                }
            }
            other if never_in_a_block(other) => ALONE,
            // Every other utility statement of PostgreSQL may stand in a transaction block.
            _ => TRANSACTIONAL,
        }
    }

    /// Reads the expressions that give stored rows a value: the default of a new column, `USING`.
    fn fills(&mut self, alter: &AlterTableStmt) {
        self.scopes.0.push(Scope::default());
        for cmd in &alter.cmds {
            let Some(NodeEnum::AlterTableCmd(cmd)) = &cmd.node else {
                continue;
            };
            let added = cmd.subtype == AlterTableType::AtAddColumn as i32;
            if !added && cmd.subtype != AlterTableType::AtAlterColumnType as i32 {
                continue;
            }
            let definition = cmd.def.as_ref().and_then(|def| def.node.as_ref());
            let Some(NodeEnum::ColumnDef(column)) = definition else {
                continue;
            };
            self.optional(column.raw_default.as_deref());
            if added && is_serial(column) {
                self.diverges("a serial column");
            }
            for constraint in &column.constraints {
                let Some(NodeEnum::Constraint(constraint)) = &constraint.node else {
                    continue;
                };
                if constraint.contype == ConstrType::ConstrDefault as i32 {
                    self.optional(constraint.raw_expr.as_deref());
                } else if constraint.contype == ConstrType::ConstrIdentity as i32 {
                    self.diverges("an identity column");
                }
            }
        }
        self.scopes.0.pop();
    }

    /// Notes a relation that the statement changes as a whole.
    fn named(&mut self, table: Option<&RangeVar>) {
        if let Some(table) = table {
            self.relation(table, true);
        }
    }

    fn dropped(&mut self, drop: &DropStmt) {
        let relations = [
            ObjectType::ObjectTable,
            ObjectType::ObjectView,
            ObjectType::ObjectMatview,
            ObjectType::ObjectSequence,
            ObjectType::ObjectIndex,
            ObjectType::ObjectForeignTable,
        ];
        if !relations
            .iter()
            .any(|kind| drop.remove_type == *kind as i32)
        {
            return;
        }
        for object in &drop.objects {
            let Some(NodeEnum::List(list)) = &object.node else {
                continue;
            };
            let names: Vec<&str> = list.items.iter().filter_map(string).collect();
            let Some((name, path)) = names.split_last() else {
                continue;
            };
            self.named(Some(&RangeVar {
                schemaname: path.last().copied().unwrap_or_default().to_owned(),
                relname: (*name).to_owned(),
                ..RangeVar::default()
            }));
        }
    }
}

fn is_serial(column: &ColumnDef) -> bool {
    let names = column.type_name.as_ref().map(|name| &name.names);
    let last = names.and_then(|names| names.last()).and_then(string);
    let serial = [
        "serial",
        "serial2",
        "serial4",
        "serial8",
        "bigserial",
        "smallserial",
    ];
    last.is_some_and(|name| serial.contains(&name))
}

fn never_in_a_block(node: &NodeEnum) -> bool {
    matches!(
        node,
        NodeEnum::CreatedbStmt(_)
            | NodeEnum::DropdbStmt(_)
            | NodeEnum::AlterDatabaseStmt(_)
            | NodeEnum::CreateTableSpaceStmt(_)
            | NodeEnum::DropTableSpaceStmt(_)
            | NodeEnum::AlterSystemStmt(_)
            | NodeEnum::CreateSubscriptionStmt(_)
            | NodeEnum::AlterSubscriptionStmt(_)
            | NodeEnum::DropSubscriptionStmt(_)
            | NodeEnum::CheckPointStmt(_)
    )
}

fn detaches_concurrently(alter: &AlterTableStmt) -> bool {
    alter.cmds.iter().any(|cmd| {
        let Some(NodeEnum::AlterTableCmd(cmd)) = &cmd.node else {
            return false;
        };
        let definition = cmd
            .def
            .as_ref()
            .and_then(|definition| definition.node.as_ref());
        matches!(definition, Some(NodeEnum::PartitionCmd(partition)) if partition.concurrent)
    })
}

fn reindexes_alone(reindex: &ReindexStmt) -> bool {
    let whole = [
        ReindexObjectType::ReindexObjectSchema,
        ReindexObjectType::ReindexObjectSystem,
        ReindexObjectType::ReindexObjectDatabase,
    ];
    whole.iter().any(|kind| reindex.kind == *kind as i32) || option(&reindex.params, "concurrently")
}

/// True when a boolean option is given and not switched off.
pub(super) fn option(options: &[Node], name: &str) -> bool {
    options.iter().any(|option| match &option.node {
        Some(NodeEnum::DefElem(element)) => element.defname == name && is_on(element),
        _ => false,
    })
}

fn is_on(element: &DefElem) -> bool {
    match element.arg.as_ref().and_then(|arg| arg.node.as_ref()) {
        None => true,
        Some(NodeEnum::String(text)) => {
            !["false", "off", "0", "no", "f"].contains(&text.sval.to_ascii_lowercase().as_str())
        }
        Some(NodeEnum::Integer(number)) => number.ival != 0,
        Some(NodeEnum::Boolean(value)) => value.boolval,
        Some(_) => true,
    }
}

/// True when an option is given, whatever its value.
pub(super) fn has_option(options: &[Node], name: &str) -> bool {
    options.iter().any(|option| match &option.node {
        Some(NodeEnum::DefElem(element)) => element.defname == name,
        _ => false,
    })
}

/// True when a relation is written as temporary.
pub(super) fn is_temporary(table: &RangeVar) -> bool {
    table.relpersistence == "t" || table.schemaname == "pg_temp"
}
