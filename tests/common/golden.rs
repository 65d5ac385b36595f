//! What `tests/golden` says of the two real models, and how far rows are from it. `tests/golden_logits.rs` tells what is there, and where the
//! tolerance comes from.

use ictus::checkpoint::Checkpoint;
use serde_json::Value;

use super::{model, models};

/// Largest error of a logit with nothing rounded to 16 bits.
pub(crate) const TOLERANCE: f64 = 1e-3;
/// Greedy tokens may differ from a step on whose lead is below this.
pub(crate) const SURE_MARGIN: f64 = 1e-3;

/// The model, when it has been fetched; otherwise a line says that it has not.
pub(crate) fn open(name: &str) -> Option<Checkpoint> {
    models::find(name).map(|path| Checkpoint::open(path).expect("the model opens"))
}

/// One of the files about a model.
pub(crate) fn golden(name: &str, kind: &str) -> Value {
    let text = std::fs::read(model::file(format!("tests/golden/{name}.{kind}.json"))).expect("committed");
    serde_json::from_slice(&text).expect("json")
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

pub(crate) fn ids(value: &Value) -> Vec<u32> {
    list(value).iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Log-sum-exp, in double precision.
pub(crate) fn lse(row: &[f32]) -> f64 {
    let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(most) + row.iter().map(|&x| f64::from(x - most).exp()).sum::<f64>().ln()
}

/// The largest error of a row against everything that is known of it.
pub(crate) fn row_error(row: &[f32], known: &Value, probe_ids: &[u32]) -> f64 {
    let n = row.len() as f64;
    let lse = lse(row);
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let std = (row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let min = row.iter().copied().fold(f32::INFINITY, f32::min);
    let mut errors = vec![
        lse - number(&known["lse"]),
        mean - number(&known["mean"]),
        std - number(&known["std"]),
        f64::from(min) - number(&known["min"]),
    ];
    for top in list(&known["top"]) {
        let logit = f64::from(row[top[0].as_u64().expect("an id") as usize]);
        errors.push(logit - number(&top[1]));
        errors.push(logit - lse - number(&top[2]));
    }
    for (&id, probe) in probe_ids.iter().zip(list(&known["probe"])) {
        errors.push(f64::from(row[id as usize]) - number(probe));
    }
    errors.into_iter().fold(0.0, |most, error| if error.abs() > most || error.is_nan() { error.abs() } else { most })
}

/// How far rows are from exact ones, over the whole vocabulary: the largest of each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Distance {
    /// Largest difference of a logit.
    pub(crate) abs: f64,
    /// Root of the mean square of a row's differences.
    pub(crate) rms: f64,
    /// KL divergence of the row from the exact one, in nats.
    pub(crate) kl: f64,
}

/// How far a row is from the exact one.
pub(crate) fn distance(row: &[f32], exact: &[f32]) -> Distance {
    let (shift, exact_shift) = (lse(row), lse(exact));
    let (mut abs, mut squares, mut kl) = (0.0f64, 0.0, 0.0);
    for (&x, &y) in row.iter().zip(exact) {
        let (x, y) = (f64::from(x), f64::from(y));
        abs = abs.max((x - y).abs());
        squares += (x - y).powi(2);
        kl += (y - exact_shift).exp() * ((y - exact_shift) - (x - shift));
    }
    Distance { abs, rms: (squares / row.len() as f64).sqrt(), kl }
}
