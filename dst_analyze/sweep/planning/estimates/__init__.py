"""What a sweep will cost and reach: time, memory, the thresholds' travel, the first alphas."""
