//! The vectors as files: their format, read whole.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

#[derive(Deserialize)]
pub(super) struct Vector {
    pub(super) name: String,
    pub(super) now_unix: i64,
    pub(super) request: Posted,
    pub(super) keys: Keys,
    pub(super) expect: Expect,
}

#[derive(Deserialize)]
pub(super) struct Posted {
    pub(super) headers: Vec<(String, String)>,
    pub(super) body_len: usize,
    pub(super) body_sha256: String,
    pub(super) body_base64: Option<String>,
    pub(super) body_recipe: Option<Recipe>,
}

#[derive(Deserialize)]
pub(super) struct Recipe {
    pub(super) prefix_base64: String,
    pub(super) fill_base64: String,
    pub(super) fill_count: usize,
    pub(super) suffix_base64: String,
}

#[derive(Clone, Deserialize, PartialEq)]
pub(super) struct Keys {
    pub(super) apiv3_key: String,
    pub(super) trusted: Vec<Trusted>,
}

#[derive(Clone, Deserialize, PartialEq)]
pub(super) struct Trusted {
    pub(super) serial: String,
    pub(super) pem: String,
}

#[derive(Deserialize)]
pub(super) struct Expect {
    pub(super) outcome: String,
    pub(super) stage: Option<String>,
    pub(super) decrypted: Option<String>,
    pub(super) refund: Option<Refund>,
}

#[derive(Deserialize)]
pub(super) struct Refund {
    pub(super) mchid: Option<String>,
    pub(super) sp_mchid: Option<String>,
    pub(super) sub_mchid: Option<String>,
    pub(super) out_trade_no: String,
    pub(super) transaction_id: Option<String>,
    pub(super) out_refund_no: String,
    pub(super) refund_id: Option<String>,
    pub(super) status: String,
    pub(super) success_time_unix: Option<i64>,
    pub(super) amount_total: i64,
    pub(super) amount_refund: i64,
    pub(super) payer_refund: Option<i64>,
}

impl Refund {
    pub(super) fn owner(&self) -> &str {
        let owner = self.sub_mchid.as_ref().or(self.mchid.as_ref());
        owner.or(self.sp_mchid.as_ref()).unwrap()
    }
}

impl Posted {
    /// The exact bytes, proven by their hash.
    pub(super) fn body(&self) -> Vec<u8> {
        let decode = |text: &str| STANDARD.decode(text).unwrap();
        let body = match (&self.body_base64, &self.body_recipe) {
            (Some(all), None) => decode(all),
            (None, Some(recipe)) => [
                decode(&recipe.prefix_base64),
                decode(&recipe.fill_base64).repeat(recipe.fill_count),
                decode(&recipe.suffix_base64),
            ]
            .concat(),
            _ => panic!("a body or a recipe"),
        };
        let sha256 = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &body);
        assert_eq!(body.len(), self.body_len);
        assert_eq!(hex::encode(sha256), self.body_sha256);
        body
    }

    /// The envelope's `id`, where the body has one.
    pub(super) fn envelope_id(&self) -> String {
        let value: serde_json::Value = serde_json::from_slice(&self.body()).unwrap();
        value["id"].as_str().unwrap().to_owned()
    }
}

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/vectors/wechat")
}

pub(super) fn vector(name: &str) -> Vector {
    let text = std::fs::read_to_string(folder().join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// All of them, in the order of the index.
pub(super) fn vectors() -> Vec<Vector> {
    let text = std::fs::read_to_string(folder().join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&text).unwrap();
    let entries = index["vectors"].as_array().unwrap();
    let name = |entry: &serde_json::Value| entry["name"].as_str().unwrap().to_owned();
    entries.iter().map(|entry| vector(&name(entry))).collect()
}
