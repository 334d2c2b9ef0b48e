"""What runs work, independent of its shape: worker, run worker, scheduler, maintenance."""
