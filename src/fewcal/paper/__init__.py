"""The paper's tables and figures as experiments: what it says beside what we measure."""
