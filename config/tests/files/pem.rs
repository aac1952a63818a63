//! Certificates and keys.

use memory_config::{load_certificates, load_private_key};

use crate::certificate;

#[test]
fn loads_chains_and_single_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    let (first, second) = (certificate("a"), certificate("b"));
    std::fs::write(&path, format!("a comment\n{first}{second}")).unwrap();
    let chain = load_certificates(&path).unwrap();
    assert_eq!(chain.len(), 2);
    std::fs::write(&path, &chain[0]).unwrap();
    assert_eq!(load_certificates(&path).unwrap(), chain[..1]);
}

#[test]
fn loads_private_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("k");
    let key = rcgen::KeyPair::generate().unwrap();
    std::fs::write(&path, key.serialize_pem()).unwrap();
    assert_eq!(
        load_private_key(&path).unwrap().secret_der(),
        key.serialize_der()
    );
    std::fs::write(&path, key.serialize_der()).unwrap();
    assert_eq!(
        load_private_key(&path).unwrap().secret_der(),
        key.serialize_der()
    );
}

#[test]
fn says_what_is_wrong_with_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    let shown = path.display();
    let fault = || load_certificates(&path).unwrap_err().to_string();
    let key_fault = || load_private_key(&path).unwrap_err().to_string();
    let none = format!("{shown}: found no certificate, allowed 1..=16 as PEM, or one as DER");
    let no_key = format!(
        "{shown}: found no private key, allowed PKCS#8, PKCS#1 or SEC1 as PEM, or PKCS#8 as DER"
    );
    assert_eq!(
        fault(),
        format!("{shown}: cannot be read: No such file or directory (os error 2)")
    );
    let pem = certificate("a");
    let der = load_der(&pem);
    let broken = pem.replace("END CERTIFICATE", "END");
    for bytes in [
        &b""[..],
        b"text",
        b"\x30\x82\x01",
        &der[..der.len() - 1],
        broken.as_bytes(),
    ] {
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(fault(), none);
        assert_eq!(key_fault(), no_key);
    }
    std::fs::write(&path, pem.repeat(17)).unwrap();
    assert_eq!(fault(), format!("{shown}: found more than 16 certificates"));
    std::fs::write(&path, vec![0; 256 * 1024 + 1]).unwrap();
    assert_eq!(fault(), format!("{shown}: found more than 262144 bytes"));
}

fn load_der(pem: &str) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    std::fs::write(&path, pem).unwrap();
    load_certificates(&path).unwrap()[0].to_vec()
}
