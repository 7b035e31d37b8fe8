//! refund-batcher takes refund notices from WeChat Pay, stores each fact once, answers within
//! seconds, and keeps orders and ledger exact in batches.
//!
//! Bird's-eye view: a delivery is verified and opened by pure code ([`core`]), waits with others for
//! one small transaction ([`commit`]), and is answered once that is durable ([`notice`]). Its money
//! is booked later, batch by batch ([`flush`]); what a crash or a full queue left over is found
//! again by its due time ([`relay`]).
//!
//! Invariants: nothing is acknowledged that is not stored; a fact is applied once, guarded by the
//! unique digest, the compare-and-set and the ledger's unique key, each alone enough;
//! `orders.refunded_fen` is the sum of the order's ledger rows at every committed moment; nothing
//! leaves a final state; no transaction locks both `refund_order` and `orders`.

pub mod core;

pub mod notice;

pub mod commit;

pub mod flush;

pub mod relay;

pub mod repeats;

pub mod ports;

pub mod config;

pub mod telemetry;

pub mod adapters;

pub mod app;

pub mod commands;
