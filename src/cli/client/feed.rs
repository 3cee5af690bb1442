//! The feed of all events, as a stream of server-sent events.

use std::time::Duration;

use reqwest::{Method, Response, header};
use tokio::time::timeout;

use super::{Action, Client, Event, PATIENCE, Problem};

/// The longest silence of a stream: the service sends a comment every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// An open stream of events.
#[derive(Debug)]
pub struct EventStream {
    response: Response,
    read: Vec<u8>,
}

impl Client {
    /// `streamEvents`: all events of a DAG's runs, from the first that is kept, for as long as the stream is read.
    ///
    /// # Errors
    ///
    /// As for all.
    pub async fn stream_events(&self, dag_name: &str) -> Result<EventStream, Problem> {
        let call = self.query(Method::GET, &["events", "stream"], &[("dag_name", dag_name)]);
        let answered = timeout(PATIENCE, call.header(header::ACCEPT, "text/event-stream").send()).await;
        let response = answered.map_err(|_| late())?.map_err(|error| Problem::transport(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(EventStream { response, read: Vec::new() });
        }
        let body = response.bytes().await.map_err(|error| Problem::transport(&error))?;
        Err(Problem::answered(status.as_u16(), &body, None))
    }
}

impl EventStream {
    /// The next event; none when the service has ended the stream.
    ///
    /// # Errors
    ///
    /// A problem with [`Action::Retry`] when the stream broke, or was silent for longer than it may be.
    pub async fn next(&mut self) -> Result<Option<Event>, Problem> {
        loop {
            while let Some(frame) = frame(&mut self.read) {
                if let Some(data) = data(&frame) {
                    let unreadable = |error| {
                        let detail = format!("an event could not be read: {error}");
                        Problem::local("unreadable-answer", Action::GiveUp, detail)
                    };
                    return serde_json::from_str(&data).map(Some).map_err(unreadable);
                }
            }
            let chunk = timeout(SILENCE, self.response.chunk()).await.map_err(|_| late())?;
            match chunk.map_err(|error| Problem::transport(&error))? {
                Some(bytes) => self.read.extend_from_slice(&bytes),
                None => return Ok(None),
            }
        }
    }
}

fn late() -> Problem {
    Problem::local("connection", Action::Retry, "the stream of events is silent".to_owned())
}

/// Takes the first whole frame out of what was read.
fn frame(read: &mut Vec<u8>) -> Option<String> {
    let end = read.windows(2).position(|pair| pair == b"\n\n")?;
    let frame: Vec<u8> = read.drain(..end + 2).collect();
    Some(String::from_utf8_lossy(&frame).into_owned())
}

/// What a frame carries; none of a comment.
fn data(frame: &str) -> Option<String> {
    let lines: Vec<&str> = frame.lines().filter_map(|line| line.strip_prefix("data:")).collect();
    let lines = lines.iter().map(|line| line.strip_prefix(' ').unwrap_or(line));
    let data = lines.collect::<Vec<_>>().join("\n");
    (!data.is_empty()).then_some(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_whole_and_comments_carry_nothing() {
        let mut read = b": keep-alive\n\nid: 7\nevent: dag.run.queued\ndata: {\"type\":\"x\"}\n\nid: 8\nda".to_vec();
        assert_eq!(data(&frame(&mut read).expect("a comment")), None);
        assert_eq!(data(&frame(&mut read).expect("an event")).as_deref(), Some("{\"type\":\"x\"}"));
        assert_eq!(frame(&mut read), None);
        assert_eq!(read, b"id: 8\nda");
    }
}
