//! The table: each file of `cases/` breaks the good deployment in one way, and says what is to be found.
//!
//! ```toml
//! arguments = ["--static"]            # default: --static --toolshed-policy policy.json
//! among = true                        # other findings are allowed: they depend on the host
//! edit = [["router.toml", "from", "to"]]
//! take = [["expired.pem", "public.pem"]]  # from the pool of keys and certificates
//! write = [["router.seed", "text"]]
//! mode = [["tls.key", "0644"]]
//! remove = ["one.pem"]
//! folder = ["public.pem"]
//! pipe = ["tls.key"]
//! owner = ["tls.key"]                 # gives it to a stranger: for root only
//! spaces = 10001                      # that many listed spaces
//!
//! [[expect]]                          # in the order of the output
//! severity = "error"
//! at = "router.toml:7:11"             # or the file alone, or nothing
//! key = "tls_key"
//! what = "a part of it"
//! found = "a part of it"
//! ```

use std::fs;
use std::os::unix::fs::chown;

use memory_config::Identity;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::Deserialize;
use serde_json::Value;

use crate::world::{World, findings, here};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    arguments: Option<Vec<String>>,
    #[serde(default)]
    among: bool,
    #[serde(default)]
    edit: Vec<[String; 3]>,
    #[serde(default)]
    take: Vec<[String; 2]>,
    #[serde(default)]
    write: Vec<[String; 2]>,
    #[serde(default)]
    mode: Vec<[String; 2]>,
    #[serde(default)]
    remove: Vec<String>,
    #[serde(default)]
    folder: Vec<String>,
    #[serde(default)]
    pipe: Vec<String>,
    #[serde(default)]
    owner: Vec<String>,
    spaces: Option<u32>,
    expect: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    severity: String,
    #[serde(default)]
    at: String,
    #[serde(default)]
    key: String,
    what: String,
    found: String,
}

#[test]
fn each_broken_deployment_has_the_finding_it_is_known_for() {
    let mut names: Vec<_> = fs::read_dir(here().join("cases"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    names.sort();
    assert!(names.len() >= 60, "{}", names.len());
    let faults: Vec<String> = names
        .iter()
        .filter_map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy();
            let case = toml::from_str(&fs::read_to_string(path).unwrap())
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            run(case).err().map(|fault| format!("{name}: {fault}"))
        })
        .collect();
    assert!(
        faults.is_empty(),
        "{} of {}:\n{}",
        faults.len(),
        names.len(),
        faults.join("\n")
    );
}

fn run(case: Case) -> Result<(), String> {
    if !case.owner.is_empty() && !rustix::process::geteuid().is_root() {
        println!("left out, for only root can give files away");
        return Ok(());
    }
    let world = World::good();
    break_it(&world, &case);
    let default = ["--static", "--toolshed-policy", "policy.json"].map(str::to_owned);
    let arguments = case.arguments.unwrap_or_else(|| default.to_vec());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (status, outcome) = world.check(&arguments);
    let found = findings(&outcome);
    let whole = format!("status {status}, {found:#?}");
    let matches = match case.among {
        true => case
            .expect
            .iter()
            .all(|expected| found.iter().any(|one| expected.fits(one))),
        false => {
            found.len() == case.expect.len()
                && case
                    .expect
                    .iter()
                    .zip(found)
                    .all(|(expected, one)| expected.fits(one))
        }
    };
    let is_bad = case
        .expect
        .iter()
        .any(|expected| expected.severity == "error");
    let fits = matches && (case.among || (status == 78) == is_bad);
    // Whatever is found says what to do.
    let complete = found.iter().all(|one| {
        ["what", "found", "allowed", "mend"]
            .iter()
            .all(|part| one[part] != "")
    });
    if fits && complete { Ok(()) } else { Err(whole) }
}

fn break_it(world: &World, case: &Case) {
    for [file, from, to] in &case.edit {
        world.edit(file, from, to);
    }
    for file in case.remove.iter().chain(&case.folder).chain(&case.pipe) {
        fs::remove_file(world.path(file)).unwrap();
    }
    for [from, to] in &case.take {
        world.take(from, to);
    }
    for [file, text] in &case.write {
        world.write(file, text);
    }
    for file in &case.folder {
        fs::create_dir(world.path(file)).unwrap();
    }
    for file in &case.pipe {
        mknodat(CWD, world.path(file), FileType::Fifo, Mode::RUSR, 0).unwrap();
    }
    for [file, mode] in &case.mode {
        world.mode(file, u32::from_str_radix(mode, 8).unwrap());
    }
    for file in &case.owner {
        chown(world.path(file), Some(54_321), None).unwrap();
    }
    if let Some(count) = case.spaces {
        let listed = (1..=count).filter_map(|number| {
            let mut seed = [0; 32];
            seed[..4].copy_from_slice(&number.to_be_bytes());
            let did = Identity::from_seed(seed).ok()?.did();
            Some(format!(
                "\n    \"{did}\": {{\"toolshed\": 0, \"epoch\": 1}}"
            ))
        });
        let listed: Vec<String> = listed.collect();
        world.edit(
            "directory.json",
            "\"spaces\": {",
            &format!("\"spaces\": {{{},", listed.join(",")),
        );
    }
}

impl Expected {
    fn fits(&self, finding: &Value) -> bool {
        let text = |part: &str| finding[part].as_str().unwrap_or_default();
        let at = match (text("file"), finding["line"].as_u64()) {
            (file, Some(0)) => file.to_owned(),
            (file, line) => format!("{file}:{}:{}", line.unwrap(), finding["column"]),
        };
        text("severity") == self.severity
            && at == self.at
            && text("key") == self.key
            && text("what").contains(&self.what)
            && text("found").contains(&self.found)
    }
}
