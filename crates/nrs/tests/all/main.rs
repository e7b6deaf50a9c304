//! Tests of the request schedulers: the contract that every policy fulfils, and what each promises.

mod contract;
mod order;
mod rates;
mod requests;
mod rules;
