//! The options of `lowtide-bench sleep`.

use lowtide_cli::arguments::{devices, numbers};
use lowtide_device::DeviceId;

#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Each process fills the blocks with random bytes and sleeps for the first time. Then it does the \
                  later turns: nothing changed and every page changed, alternating; then wakes without a rest before \
                  them; then plain copies of the kept bytes. After every wake the digest of every page is compared, \
                  after the last wake one block in 17 byte for byte. With --ahead, a loop launches small work, first \
                  alone, then until the weights are backed up."
)]
pub(crate) struct Options {
    /// The device: host, cuda:0, … By default the first GPU, or host without one.
    #[arg(long, value_name = "DEVICE", value_parser = devices::named)]
    pub(super) device: Option<DeviceId>,
    /// The number of processes, for first sleeps. By default 5, on host 1.
    #[arg(long, value_name = "COUNT", value_parser = numbers::whole::<u32>("", 1, 100))]
    pub(super) processes: Option<u32>,
    /// The number of later turns of each kind in a process.
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = numbers::whole::<u32>("", 1, 1000))]
    pub(super) turns: u32,
    /// Divide every size by this. By default the smallest power of two with which the work fits.
    #[arg(long, value_name = "NUMBER", value_parser = numbers::whole::<u64>("", 1, 4096))]
    pub(super) divide: Option<u64>,
    /// Fill the weights with bf16 values of layers of different scale, instead of random bytes.
    #[arg(long)]
    pub(super) weights: bool,
    /// Copy pages of bf16 values as they are, instead of packing them on their way to the host.
    #[arg(long)]
    pub(super) no_packing: bool,
    /// Back up the weights ahead of the first sleep, in this share of the time, while a loop launches small
    /// work.
    #[arg(long, value_name = "PERCENT", num_args = 0..=1, default_missing_value = "25", value_parser = numbers::whole::<u32>("percent", 1, 100))]
    pub(super) ahead: Option<u32>,
    /// The process that started this one, with which it ends.
    #[arg(long, value_name = "PID", hide = true)]
    pub(super) parent: Option<u32>,
    /// Print JSON instead of text; docs/json.md lists the keys.
    #[arg(long)]
    pub(super) json: bool,
}
