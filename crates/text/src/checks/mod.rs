pub mod quantities;
