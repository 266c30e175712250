"""OT pairs computed ahead of time: worker processes solve OT batches while the network trains."""
