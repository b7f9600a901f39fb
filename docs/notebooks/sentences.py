# %% [markdown]
# # Sentences
#
# Requests to a help desk, a few of each kind. `make docs` executes this page; its script is
# `docs/notebooks/sentences.py`.

# %%
import pandas as pd

import fewcal

KNOWN = {
    "card lost": ["my card was stolen on the train", "I cannot find my bank card anywhere", "someone took my wallet"],
    "balance": ["how much money do I have left", "show me what is on my account", "tell me my current balance"],
    "transfer": ["send fifty euros to my sister", "I want to pay my landlord", "move money to my savings account"],
    "opening hours": ["when does the branch open", "are you open on Sunday", "until when can I come by today"],
}
known = pd.DataFrame([(text, label) for label, texts in KNOWN.items() for text in texts], columns=["text", "label"])

NEW = {
    "card lost": ["I left my card in a taxi", "block it, my purse has been stolen", "my debit card is missing"],
    "balance": ["is there enough on my account for rent", "what is my balance", "how many euros are left this month"],
    "transfer": ["please wire 200 to John", "pay the electricity bill", "transfer my salary to the other account"],
    "opening hours": ["do you close at noon", "is the office open tomorrow", "what are your hours on a holiday"],
}
new = pd.DataFrame([(text, label) for label, texts in NEW.items() for text in texts], columns=["text", "label"])

# %% [markdown]
# ## Answers
#
# A table with a column `text` is enough; where it has a column `label` too, answers are scored. MiniLM is inside a
# package, so nothing is downloaded.

# %%
answers = fewcal.classify(known, new, "minilm")
answers

# %% [markdown]
# ## With other topics as base classes
#
# Sentences of other, well-known topics are the prior of a class mean. Ten topics weigh little; `explain` shows how
# much.

# %%
TOPICS = {
    "weather": ["will it rain", "how cold is it outside", "is there a storm coming", "sunny with light wind"],
    "food": ["bread with butter", "the soup needs salt", "bake it for an hour", "two cups of flour"],
    "sport": ["they won the match", "a goal in the last minute", "she runs ten miles", "the team has a new coach"],
    "music": ["play some jazz", "the choir sings tonight", "turn up the volume", "a song by that band"],
    "travel": ["book a flight to Rome", "my train is late", "a room with a view", "where is the station"],
    "health": ["my head hurts", "see a doctor about the cough", "take one pill a day", "she broke her arm"],
    "school": ["homework is due on Friday", "the teacher is ill", "an exam in history", "he learns to read"],
    "garden": ["water the roses", "the grass is too long", "plant beans in May", "cut the hedge"],
    "film": ["a film with subtitles", "the actor got a prize", "cinema tickets for two", "a boring ending"],
    "work": ["the meeting is at nine", "she asked for a raise", "send the report", "he is on leave"],
}
texts, names = zip(*[(text, name) for name, own in TOPICS.items() for text in own], strict=True)
embed = fewcal.Embed("minilm")
bank = fewcal.BaseBank().fit(embed.fit_transform(list(texts)), names)
bank

# %%
classifier = fewcal.FewShotClassifier(bank).fit(embed.transform(list(known.text)), known.label.to_numpy(str))
classifier.explain()

# %%
share = classifier.score(embed.transform(list(new.text)), new.label.to_numpy(str))
print(f"{share:.0%} of {len(new)} are right")

# %% [markdown]
# ## None of these
#
# The p-value is the share of base sentences that look at least as much like the known kinds as this one. Small values
# are requests of a known kind; large ones are something else.

# %%
odd = [
    "I left my card in a taxi",
    "what are your hours on a holiday",
    "the cat sleeps on the sofa",
    "a goal was scored",
]
pd.DataFrame({"text": odd, "p": classifier.outlier_pvalue(embed.transform(odd)).round(2)})
