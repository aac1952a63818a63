//! The configuration as `run` accepted it, for the roles that it starts.
//!
//! A role that dies is started again at any time, and by then the file may be half-written, or say what only a whole restart
//! brings about. So a child does not read it at its start: it gets the text that `run` started with and the one that it
//! accepted last, sealed, as its standard input, and makes of them what the running roles have made.

use std::cell::RefCell;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use memory_config::{ConfigErrors, Examined, Places, Reloaded, RouterConfig};
use memory_ipc::memfd::{self, MemfdError};

use crate::exit::{Exit, Failure};

/// Set by `run` for its children: their standard input is what [`Accepted::sealed`] made.
pub(crate) const VARIABLE: &str = "MEMORY_ROUTER_ACCEPTED";

/// Bytes of both texts together, at most: twice the most of a configuration file.
const MAX_LEN: usize = 2 * 1024 * 1024 + BORDER_LEN;

/// Bytes in front that say how long the first text is.
const BORDER_LEN: usize = 4;

/// What a role's configuration is made of.
#[derive(Debug)]
pub(crate) struct Accepted {
    /// What the first of all processes started with.
    first: String,
    /// What was accepted last.
    latest: RefCell<String>,
}

impl Accepted {
    /// From a supervisor that accepted it, or else from the file; with what it says, places and faults.
    ///
    /// # Errors
    /// [`Exit::Usage`] when standard input is not what a supervisor hands over.
    pub(crate) fn at_start(file: &Path) -> Result<(Self, Examined), Failure> {
        let accepted = if std::env::var_os(VARIABLE).is_some() {
            received(io::stdin().as_fd().try_clone_to_owned()).map_err(|error| {
                let what = format!("{VARIABLE} is for `memory-router run` to set");
                Failure::because(Exit::Usage, what, error)
            })?
        } else {
            match RouterConfig::read_file(file) {
                Ok(text) => Self::new(text),
                Err(errors) => {
                    let unread = Examined {
                        config: None,
                        places: Places::default(),
                        errors: errors.0,
                    };
                    return Ok((Self::new(String::new()), unread));
                }
            }
        };
        let examined = accepted.examine(file);
        Ok((accepted, examined))
    }

    fn new(text: String) -> Self {
        Self {
            latest: RefCell::new(text.clone()),
            first: text,
        }
    }

    fn examine(&self, file: &Path) -> Examined {
        let latest = self.latest.borrow();
        let mut examined = RouterConfig::examine_text(&latest, file);
        if *latest != self.first && examined.errors.is_empty() {
            // What needs a restart of the whole stays as the others have it.
            let over = RouterConfig::parse(&self.first, file)
                .and_then(|first| RouterConfig::parse_over(&latest, file, &first));
            match over {
                Ok(reloaded) => examined.config = Some(reloaded.config),
                Err(errors) => examined.errors = errors.0,
            }
        }
        examined
    }

    /// Reads the file over what runs, and remembers its text if it is good.
    ///
    /// # Errors
    /// Every fault of the file. Nothing has changed then.
    pub(crate) fn reload(
        &self,
        file: &Path,
        running: &RouterConfig,
    ) -> Result<Reloaded, ConfigErrors> {
        let text = RouterConfig::read_file(file)?;
        let reloaded = RouterConfig::parse_over(&text, file, running)?;
        self.latest.replace(text);
        Ok(reloaded)
    }

    /// For a child's standard input.
    ///
    /// # Errors
    /// When the memory cannot be had.
    pub(crate) fn sealed(&self) -> io::Result<OwnedFd> {
        let length = u32::try_from(self.first.len()).map_err(io::Error::other)?;
        let mut contents = length.to_be_bytes().to_vec();
        contents.extend_from_slice(self.first.as_bytes());
        contents.extend_from_slice(self.latest.borrow().as_bytes());
        memfd::sealed("accepted-configuration", &contents).map_err(io::Error::other)
    }
}

/// Why what was handed over cannot be used.
#[derive(Debug, thiserror::Error)]
enum HandOver {
    #[error("there is no standard input")]
    Missing(#[source] io::Error),
    #[error("standard input is no configuration")]
    File(#[from] MemfdError),
    #[error("the configuration is malformed")]
    Malformed,
}

fn received(input: io::Result<OwnedFd>) -> Result<Accepted, HandOver> {
    let contents = memfd::read(input.map_err(HandOver::Missing)?, MAX_LEN)?;
    let (border, texts) = contents
        .split_at_checked(BORDER_LEN)
        .ok_or(HandOver::Malformed)?;
    let border = <[u8; BORDER_LEN]>::try_from(border).map_err(|_| HandOver::Malformed)?;
    let length = usize::try_from(u32::from_be_bytes(border)).map_err(|_| HandOver::Malformed)?;
    let (first, latest) = texts.split_at_checked(length).ok_or(HandOver::Malformed)?;
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| HandOver::Malformed);
    Ok(Accepted {
        first: text(first)?,
        latest: RefCell::new(text(latest)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(host: &str, ipc_dir: &str) -> String {
        format!(
            "version = 1\nlisten = [\"127.0.0.1:8443\"]\nhost = \"{host}\"\norigins = []\n\
             directory = \"directory.json\"\npublic_certificate = \"chain.pem\"\ntls_key = \"key.pem\"\n\
             router_seed = \"seed\"\nipc_dir = \"{ipc_dir}\"\n"
        )
    }

    const FILE: &str = "/nowhere/router.toml";

    #[test]
    fn a_child_makes_of_it_what_its_supervisor_made() {
        let accepted = Accepted::new(text("one", "/run/one"));
        accepted.latest.replace(text("two", "/run/two"));
        let handed = received(accepted.sealed()).unwrap();
        let examined = handed.examine(Path::new(FILE));
        assert_eq!(examined.errors, []);
        let config = examined.config.unwrap();
        assert_eq!(config.host, "two");
        assert_eq!(config.ipc_dir, Path::new("/run/one"));
    }

    #[test]
    fn what_is_not_whole_is_refused() {
        let whole = Accepted::new("a = 1\n".to_owned()).sealed().unwrap();
        let whole = memfd::read(whole, MAX_LEN).unwrap();
        assert!(received(memfd::sealed("x", &whole).map_err(io::Error::other)).is_ok());
        for length in 0..10 {
            let cut = memfd::sealed("x", &whole[..length]).map_err(io::Error::other);
            assert!(received(cut).is_err(), "{length}");
        }
        let open = std::fs::File::open("/dev/null").map(OwnedFd::from);
        assert!(matches!(received(open), Err(HandOver::File(_))));
    }
}
