//! Integration tests: one binary, real listeners, real databases.
//!
//! `make test` starts the MariaDB that these tests use; see `tests/with-mariadb`.
#![allow(clippy::unwrap_used)]

mod check;
mod commands;
mod http;
mod layering;
mod mariadb_faults;
mod partitions;
mod sql_text;
mod store_contract;
mod support;
mod vectors;
mod wire;
