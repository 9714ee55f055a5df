//! Error responses with a message.

use axum::extract::Request;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};

#[derive(Debug, PartialEq, Eq)]
pub struct ErrorResponse(pub StatusCode, pub String);

impl ErrorResponse {
    pub fn unknown_path(uri: &Uri, paths: &str) -> Self {
        Self(StatusCode::NOT_FOUND, format!("not found: {:.100} (try {paths})", uri.path()))
    }

    pub fn other_method(request: &Request, accepted: &str) -> Self {
        let (path, method) = (request.uri().path(), request.method().as_str());
        Self(StatusCode::METHOD_NOT_ALLOWED, format!("{path:.100} accepts only {accepted}, not {method:.20}"))
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let Self(status, message) = self;
        (status, format!("{message}\n")).into_response()
    }
}
