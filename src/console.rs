//! The two streams of a command. Nobody may be reading: what cannot be written is not a reason to end, or to panic as
//! the standard macros do.

use std::io::{self, Write};

/// Says something to whoever watches: a line on standard error. Lost if nobody reads it.
pub fn say(line: impl AsRef<str>) {
    // One write, so that lines of several threads stay whole.
    let _ = io::stderr().write_all(format!("{}\n", line.as_ref()).as_bytes());
}

/// Writes a command's result to standard output.
///
/// # Errors
/// When it cannot be written, such as into a pipe that has closed.
pub fn write(text: impl AsRef<str>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes())?;
    out.flush()
}

/// Standard error for a log: what cannot be written is lost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _ = io::stderr().flush();
        Ok(())
    }
}
