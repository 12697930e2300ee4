//! Hands of the state machine that grows a cluster.
