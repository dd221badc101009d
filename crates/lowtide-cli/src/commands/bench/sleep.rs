//! placeholder
use clap::Args;
#[derive(Debug, Args)]
pub(crate) struct Options {}
pub(crate) fn run(_: &Options) -> anyhow::Result<()> {
    Ok(())
}
pub(crate) fn child(_: &Options) -> anyhow::Result<()> {
    Ok(())
}
