//! The times of the settings as durations.

use std::time::Duration;

use memory_config::WorkerSettings;
use memory_wire::upgrade::UpgradePolicy;

/// What the worker reads out of its settings.
pub(crate) trait Times {
    fn handshake(&self) -> Duration;
    fn authenticate(&self) -> Duration;
    fn ping_interval(&self) -> Duration;
    fn ping_timeout(&self) -> Duration;
    fn admission(&self) -> Duration;
    fn hold_open(&self) -> Duration;
    fn drain(&self) -> Duration;
    fn data_handshake(&self) -> Duration;
    /// How long an open waits while another data socket of the connection is being set up.
    fn setup_turn(&self) -> Duration;
    fn tcp_user(&self) -> Duration;
    /// How long an upload of `bytes` may take: the fixed part, and the bytes at the slowest rate allowed.
    fn upload_allowance(&self, bytes: u32) -> Duration;
    /// What the public endpoint accepts.
    fn upgrade_policy(&self) -> UpgradePolicy;
}

impl Times for WorkerSettings {
    fn handshake(&self) -> Duration {
        Duration::from_millis(self.handshake_ms)
    }

    fn authenticate(&self) -> Duration {
        Duration::from_millis(self.authenticate_ms)
    }

    fn ping_interval(&self) -> Duration {
        Duration::from_millis(self.ping_interval_ms)
    }

    fn ping_timeout(&self) -> Duration {
        Duration::from_millis(self.ping_timeout_ms)
    }

    fn admission(&self) -> Duration {
        Duration::from_millis(self.admission_ms)
    }

    fn hold_open(&self) -> Duration {
        Duration::from_millis(self.hold_open_ms)
    }

    fn drain(&self) -> Duration {
        Duration::from_millis(self.drain_ms)
    }

    fn data_handshake(&self) -> Duration {
        Duration::from_millis(self.data_handshake_ms)
    }

    fn setup_turn(&self) -> Duration {
        Duration::from_millis(self.control_wait_ms) + self.data_handshake()
    }

    fn tcp_user(&self) -> Duration {
        Duration::from_millis(self.tcp_user_ms)
    }

    fn upload_allowance(&self, bytes: u32) -> Duration {
        Duration::from_millis(self.upload_ms)
            + Duration::from_secs(u64::from(bytes) / self.upload_min_rate.max(1))
    }

    fn upgrade_policy(&self) -> UpgradePolicy {
        UpgradePolicy::Public {
            host: self.host.clone(),
            origins: self.origins.clone(),
            require_origin: self.require_origin,
        }
    }
}
