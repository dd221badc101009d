//! `generate`: completions and man pages, made from the definitions that parse the command line.
//!
//! The folder is laid out as a prefix such as `/usr/local` is, so that it can be copied there.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use super::ending::Ending;

/// Where under a prefix man pages are.
const MAN_PAGES: &str = "share/man/man1";

/// The options of `generate`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "The folder is laid out as a prefix: share/bash-completion, share/zsh, share/fish, share/man.\n\n\
                        Example:\n  lowtide generate ~/.local"
)]
pub struct Options {
    /// The folder to write to. It is made if it does not exist; other files in it stay.
    #[arg(value_name = "FOLDER")]
    to: PathBuf,
}

/// Writes the completions of each shell and the man pages.
pub fn run<Arguments: CommandFactory>(options: &Options) -> anyhow::Result<Ending> {
    let name = Arguments::command().get_name().to_owned();
    for (shell, path) in [
        (Shell::Bash, format!("share/bash-completion/completions/{name}")),
        (Shell::Zsh, format!("share/zsh/site-functions/_{name}")),
        (Shell::Fish, format!("share/fish/vendor_completions.d/{name}.fish")),
    ] {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut Arguments::command(), &name, &mut script);
        write(&options.to.join(path), &script)?;
    }
    let mut program = Arguments::command().disable_help_subcommand(true);
    // Fills in what options inherit, and the full names of subcommands.
    program.build();
    man_pages(&program, &options.to.join(MAN_PAGES))?;
    Ok(Ending::Proved)
}

/// Writes the page of a command and those of its subcommands: `lowtide-run.1`.
fn man_pages(command: &clap::Command, folder: &Path) -> anyhow::Result<()> {
    for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
        man_pages(subcommand, folder)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name()).to_owned();
    let mut page = Vec::new();
    let man = clap_mangen::Man::new(command.clone()).title(name.to_uppercase());
    man.render(&mut page).with_context(|| format!("making the man page of {name}"))?;
    write(&folder.join(OsString::from(format!("{name}.1"))), &page)
}

fn write(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let written = |path: &Path| -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(path, content)
    };
    written(path).with_context(|| format!("writing {}", path.display()))
}
