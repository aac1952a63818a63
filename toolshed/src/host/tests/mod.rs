mod bind;
mod control;
mod request;
mod support;
