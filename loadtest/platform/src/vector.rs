//! Test data: one published example of a refund notice, made by another implementation, and a key of our own.
//!
//! All of it is made up. It lets the tests compare whole messages, byte by byte, with somebody else's.

use std::sync::OnceLock;

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::keys::SigningKey;

pub(crate) const API_V3_KEY: &str = "refund-batcher-test-apiv3-key-01";
pub(crate) const TIMESTAMP_UNIX: i64 = 1_788_999_998;
pub(crate) const NONCE: &str = "FzVCAH9eJB6fEXwLCApsyM3xe44Fs0q7";
pub(crate) const SIGNATURE: &str = "g3sFmwhFQJuStwGFfG26VeDom08xfPfCyQ2mwnSYwRpIUN0cKwsflweE8nZIgewZ3cyiLlPldE+52aIKNHw2SaNzvNxGnU2mXxKy/z+i7Jnadg7nkbngMh8IHUN1SMdNjbk/cjVzMTqiJ97ngjaRL1njjtepxZs26MegLoS/oU6n3ae/SCEtzmeQ1kWU5EwbNHYzuO6g2Dl9wGn/Xcj3opdUlQv47P8IGXEZh0IxLMkujMUf44duksPbDWEOPy42NZweLrFHBeAjcEwTM+h9zcNfTk6e9GFSXRV/RpXNUDKaPTelvFG4T6aNg1UgCC1B/+WMcepc9pC0OcyDP1Z5DQ==";
pub(crate) const BODY: &str = r#"{"id":"a509d693-f300-5847-973f-6516726d49ef","create_time":"2026-09-10T08:26:37+08:00","resource_type":"encrypt-resource","event_type":"REFUND.SUCCESS","summary":"退款成功","resource":{"original_type":"refund","algorithm":"AEAD_AES_256_GCM","ciphertext":"8fIs6a+S4pW148yj169WdMqO5ISG7PfD99TbVBgAk8s+SCfJS8O6qfBJTMHCrom3h4IdsCBnwayNq3AafZlhgJZSMemJZ7f0YGC4F1UxLYc/4EPC/eAGciGm5IrLFjAoYKK/TJyd0xPMezSNiEvudIdSfWF3e1DTR0wEIOD4i5u099O5YqmAbHqyX1RJNoUZuw+iXQTZvwlMDx5xGvqEie8J7zW9NLRiJT8Ed1T1B+mzQFi5TJxrdlpZDPOMF/nv/+t/labLatIBVQO+qNPr+su6zxLBr2/o9SlC6YD7wixwMvNnQMmUoMPgBjT8fUsTvzm596xI+vqiMlUQLRwXAv6Bnlv94UqzYCtHmDHMPzbDwEEjVnn6YTLkrgkxg41yNnc5vAERdFVMLil4fRjlniFjeWmy41UvJjbcwXtgT0N26vaTGmhFmRrMT0u9Spr1XF7+J3L64WQpp/7bfMwzLoTL2VWjbzQQQTtg3DerUFzlFXheIPisuc62KYbBYReyTEtSKugbDzKNlozfmHtViw==","associated_data":"refund","nonce":"ZJZvd1O2Kt3f"}}"#;
pub(crate) const PLAINTEXT: &str = r#"{"mchid":"1900000109","out_trade_no":"ORDER20260909000001","transaction_id":"4200001800000000000000007919","out_refund_no":"REFUND20260909000001","refund_id":"50300000000000000000000104729","refund_status":"SUCCESS","success_time":"2026-09-10T08:25:40+08:00","amount":{"total":999,"refund":999,"payer_total":999,"payer_refund":999},"user_received_account":"招商银行信用卡0403"}"#;
pub(crate) const PUBLIC_KEY_PEM: &str = "-----BEGIN PUBLIC KEY-----
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAv9XiI0xm6PlFS9AY1dUS
/Ygogxw2fYVDQZIzS3I/zUUWH152Ded/G2ATarhCNeeQaIUdpKrCOywKD9MwpOEa
vickDJsIjsVcLjbi6Px4L3PZoWDD1gz2bqYfC94W0whDorhl8+8PMYNMrC+0akIQ
AuUVQOB3K0FKT0HSLguFnGnJqZXMmMHGOdm3VwYjFS8W8TeBNe16HCB+PulicgpL
oXSb1wnWjsEkMxHXo2JmeKGH3EH3ZT/1kmmJDsobPVOM3sgBlZt6chlGJxE9IA2s
ZaqO6dh46+qmHYGgQixGhRsp3Yx4dlOKGiCBi96WYGmkCL43LZJS1u9dkMMNxNdM
owIDAQAB
-----END PUBLIC KEY-----
";

/// A key made once per test run, because making one is slow without optimisation.
pub(crate) fn signing_key() -> SigningKey {
    static PKCS8: OnceLock<Vec<u8>> = OnceLock::new();
    let der = PKCS8.get_or_init(|| {
        let key = SigningKey::public_key("A").expect("a key can be made");
        key.pkcs8_der().to_vec()
    });
    SigningKey::from_pkcs8("PUB_KEY_ID_0119000001092026090100000000000001", der)
        .expect("it is a key")
}

/// The bytes inside a PEM block.
pub(crate) fn spki_der(pem: &str) -> Vec<u8> {
    let text: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
    STANDARD.decode(text).expect("PEM holds base64")
}

/// Whether `signature`, in base64, is one over `message` by the owner of the public key.
pub(crate) fn verify(public_key_pem: &str, message: &[u8], signature: &str) -> bool {
    let der = spki_der(public_key_pem);
    let Ok(signature) = STANDARD.decode(signature) else {
        return false;
    };
    UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der)
        .verify(message, &signature)
        .is_ok()
}
