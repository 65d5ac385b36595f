//! Grammars through the engine: scenarios RS-12 .. RS-24, their rules, hostile documents, and random schemas on the fake runtime and on
//! a real model.

#[path = "../common/models.rs"]
mod models;
#[path = "../common/random.rs"]
#[expect(dead_code, reason = "not every test needs every kind of random number")]
mod random;

#[path = "../tick_scenarios/engine.rs"]
mod engine;

mod drafts;
mod hostile;
mod judge;
mod model;
mod rules;
mod scenarios;
mod schemas;
mod structural;
mod words;
