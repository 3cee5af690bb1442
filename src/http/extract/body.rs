//! Bodies: read whole within a limit, checked or mended as JSON, then read field by field.

use std::future::poll_fn;
use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRef, FromRequest, Request};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Fields, FromFields, Reading, Settings};
use crate::http::json;
use crate::http::problem::{Code, Problem};

/// The most that is set aside for a body on its word alone.
const PREPARED_BYTES: usize = 64 * 1024;

/// How long the rest of a body that is too large is read and thrown away, so that a client which writes all before it
/// reads gets to see its answer rather than a broken connection.
const DRAIN: Duration = Duration::from_secs(30);

/// A JSON body, in requests and in answers.
#[derive(Debug, Clone)]
pub struct Json<T>(pub T);

impl<S, T> FromRequest<S> for Json<T>
where
    T: FromFields,
    S: Send + Sync,
    Settings: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let bytes = read_whole(&parts.headers, body, T::MAX_BYTES).await?;
        if bytes.is_empty() && T::MAY_BE_EMPTY {
            return from_text("{}", state);
        }
        require_json(&parts.headers)?;
        match T::READING {
            Reading::Strict | Reading::Tolerant => {
                from_text(json::check(&bytes).map_err(|d| malformed(&d, &bytes))?, state)
            }
            Reading::Mending => {
                let text = json::mend(&bytes);
                for token in json::Tokens::new(&text) {
                    token.map_err(|defect| malformed(&defect, text.as_bytes()))?;
                }
                from_text(&text, state)
            }
        }
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
            Err(error) => {
                tracing::error!(%error, "an answer is no JSON");
                Problem::new(Code::Internal, "the service failed; its log says why, under this request's id")
                    .into_response()
            }
        }
    }
}

fn from_text<S, T>(text: &str, state: &S) -> Result<Json<T>, Problem>
where
    T: FromFields,
    Settings: FromRef<S>,
{
    let mut fields = Fields::of_object(text).map_err(|faults| Problem::invalid(faults.0))?;
    let value = T::from_fields(&mut fields, &Settings::from_ref(state));
    fields.end(value, T::READING).map(Json).map_err(|faults| Problem::invalid(faults.0))
}

fn malformed(defect: &json::Defect, text: &[u8]) -> Problem {
    Problem::new(Code::MalformedJson, defect.in_text(text))
}

fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let given = headers.get(header::CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let essence =
        given.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json")) {
        return Ok(());
    }
    let detail = match given {
        None => "the body must come with `Content-Type: application/json`, and came with none".to_owned(),
        Some(given) => format!("the body must come with `Content-Type: application/json`, and came with {given:?}"),
    };
    Err(Problem::new(Code::UnsupportedMediaType, detail))
}

async fn read_whole(headers: &HeaderMap, mut body: Body, most: usize) -> Result<Vec<u8>, Problem> {
    let announced = body.size_hint().lower();
    if announced > most as u64 && headers.contains_key(header::EXPECT) {
        // It has not sent the body yet, and will not once it has this answer.
        return Err(too_large(most));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(announced).unwrap_or(most).min(PREPARED_BYTES));
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Problem::new(Code::MalformedJson, "the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            drop(bytes);
            drain(body).await;
            return Err(too_large(most));
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

async fn drain(mut body: Body) {
    let rest = async { while let Some(Ok(_)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {} };
    // Whoever is slower than that is left with the answer, read or not.
    _ = tokio::time::timeout(DRAIN, rest).await;
}

fn too_large(most: usize) -> Problem {
    Problem::new(Code::PayloadTooLarge, format!("the body must have at most {most} bytes"))
}
