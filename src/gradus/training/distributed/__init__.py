"""Several processes as one trainer: how they meet, share work, and are started on one machine."""
