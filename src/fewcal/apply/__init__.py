"""From a fitted classifier to answers: pictures and texts in folders, feature files, banks."""
